"""Independent one-dimensional Gaussian processes on a grid, one per feature; requires gpytorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP
from gpytorch.priors import SmoothedBoxPrior
from gpytorch.variational import CholeskyVariationalDistribution, GridInterpolationVariationalStrategy
from torch import nn

from ltnode.typing import Float, Tensor

_SMALLEST_VARIANCE = 1e-10
_JITTER = 1e-3
"""Added to the diagonal of the prior covariance, as in the grid strategy of gpytorch."""


class GridGPs(ApproximateGP):  # type: ignore[misc]
    """F variational GPs ``f_d``, each a function of the d-th feature only, on one grid of M inducing points (KISS-GP).

    The grid covers (-bound, bound). ``q(u_d) = N(m_d, L_d L_d^T)`` with full Cholesky factors; all share a constant mean and an
    RBF kernel with output scale, whose length scale has a SmoothedBox prior on (1/e, e). With the cubic interpolation weights
    w(z) of a feature value z, ``f_d(z) ~ N(w^T m_d, |L_d^T w|^2)``.

    gpytorch provides parameters, constraints and prior. The computations of a training step are written out here in a few
    operations, because the cost of a step on a GPU grows with the number of kernel launches.
    """

    def __init__(self, features: int, grid_size: int, bound: float) -> None:
        q = CholeskyVariationalDistribution(grid_size, batch_shape=torch.Size([features]))
        super().__init__(GridInterpolationVariationalStrategy(self, grid_size, [(-bound, bound)], q))
        # gpytorch places one point beyond each bound.
        self._spacing = 2 * bound * grid_size / ((grid_size - 1) * (grid_size - 2))
        prior = SmoothedBoxPrior(math.exp(-1), math.exp(1), sigma=0.1, transform=torch.exp)
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel(lengthscale_prior=prior))
        # Some buffers of gpytorch are expanded views, which safetensors cannot save.
        for module in self.modules():
            for name, value in module.named_buffers(recurse=False):
                setattr(module, name, value.clone(memory_format=torch.contiguous_format))
        # gpytorch sets q to the prior in its first call, which must not happen inside a training step.
        self(torch.zeros(features, 1, 1))
        self._forget()

    def forward(self, z: Tensor) -> Any:
        """Return the prior at points z, for the variational strategy of gpytorch."""
        return MultivariateNormal(self.mean_module(z), self.covar_module(z))

    def marginals(self, z: Float[Tensor, "B F"]) -> tuple[Float[Tensor, "B F"], Float[Tensor, "B F"]]:
        """Compute mean and variance of f_d(z_d) for every input; values must lie between the second and last but one grid point.

        The result equals ``self(z.T[..., None])`` of gpytorch, whose lazy operator gathers 16 entries of every covariance; here
        one batched product with the Cholesky factors suffices.
        """
        w = self._interpolation(z.T)
        q = self.variational_strategy._variational_distribution
        mean = torch.bmm(w, q.variational_mean.unsqueeze(-1)).squeeze(-1)
        spread = torch.bmm(w, q.chol_variational_covar.tril())
        return mean.T, spread.square().sum(dim=-1).T.clamp_min(_SMALLEST_VARIANCE)

    def _interpolation(self, z: Float[Tensor, "F B"]) -> Float[Tensor, "F B M"]:
        """Compute the weights of all grid points: Keys' cubic kernel of the distance u in units of the grid spacing.

        The kernel is ``1.5 u^3 - 2.5 u^2 + 1`` below 1, ``-0.5 u^3 + 2.5 u^2 - 4 u + 2`` below 2, and 0 elsewhere. With
        a = (2 - u)+ and b = (1 - u)+ this equals ``a^2 (a - 1) / 2 + b^2 (1 - 2 b)`` in all cases.
        """
        u = ((z.unsqueeze(-1) - self.variational_strategy.grid.squeeze(-1)) / self._spacing).abs()
        a, b = (2 - u).relu(), (1 - u).relu()
        return 0.5 * a.square() * (a - 1) + b.square() * (1 - 2 * b)

    def kl(self) -> Tensor:
        """Compute ``sum_d KL(q(u_d) || p(u))``, 0-dim.

        All processes share the prior N(c, K) and thereby one Cholesky factor C of K: with D = F M,
        ``(sum_d |C^-1 L_d|^2 + |C^-1 (m_d - c)|^2 - log |L_d L_d^T| + log |K|) / 2 - D / 2``. In float64, which is cheap at this
        size, K with its jitter is safely positive definite for all scales that training may reach.
        """
        q = self.variational_strategy._variational_distribution
        factors, mean = q.chol_variational_covar.tril().double(), q.variational_mean.double()
        features, points = mean.shape
        grid = self.variational_strategy.grid.double()
        kernel = self.covar_module
        scaled = (grid - grid.T) / kernel.base_kernel.lengthscale.double()
        jitter = _JITTER * torch.eye(points, dtype=torch.float64, device=grid.device)
        prior = kernel.outputscale.double() * torch.exp(-0.5 * scaled.square()) + jitter
        root = torch.linalg.cholesky_ex(prior).L  # the check of torch.linalg.cholesky would wait for the device
        columns = torch.cat([factors.transpose(0, 1).flatten(1), (mean - self.mean_module.constant.double()).T], dim=1)
        white = torch.linalg.solve_triangular(root, columns, upper=False)
        log_volume = factors.diagonal(dim1=-2, dim2=-1).abs().log().sum()
        divergence = 0.5 * white.square().sum() + features * root.diagonal().log().sum() - log_volume - 0.5 * features * points
        return divergence.to(q.variational_mean.dtype)

    def log_prior(self) -> Tensor:
        """Compute the log-density of the priors of the kernel parameters, 0-dim."""
        terms = [prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in self.named_priors()]
        return torch.stack(terms).sum()

    def hyper_parameters(self) -> list[nn.Parameter]:
        """Return constant mean, output scale and length scale."""
        return [*self.mean_module.parameters(), *self.covar_module.parameters()]

    def _forget(self) -> None:
        # gpytorch caches distributions with their graphs, which would outlive a step and break copies of the model.
        self.variational_strategy._clear_cache()
