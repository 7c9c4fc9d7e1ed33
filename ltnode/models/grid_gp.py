"""Independent one-dimensional Gaussian processes on a grid, one per feature (gpytorch; import only where it is installed)."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP
from gpytorch.priors import SmoothedBoxPrior
from gpytorch.utils.interpolation import Interpolation
from gpytorch.variational import CholeskyVariationalDistribution, GridInterpolationVariationalStrategy
from torch import nn

from ltnode.typing import Float, Tensor

_SMALLEST_VARIANCE = 1e-10


class GridGPs(ApproximateGP):  # type: ignore[misc]
    """F variational GPs ``f_d``, each a function of the d-th feature alone, on one grid of M inducing points (KISS-GP).

    ``q(u_d) = N(m_d, L_d L_d^T)`` with full Cholesky factors; all share a constant mean and an RBF kernel with output scale,
    whose length scale has a SmoothedBox prior on (1/e, e). With the cubic interpolation weights w(z) of a feature value z,
    ``f_d(z) ~ N(w^T m_d, |L_d^T w|^2)``.

    Args:
        features: F.
        grid_size: M.
        bound: The grid covers (-bound, bound).
    """

    def __init__(self, features: int, grid_size: int, bound: float) -> None:
        q = CholeskyVariationalDistribution(grid_size, batch_shape=torch.Size([features]))
        super().__init__(GridInterpolationVariationalStrategy(self, grid_size, [(-bound, bound)], q))
        prior = SmoothedBoxPrior(math.exp(-1), math.exp(1), sigma=0.1, transform=torch.exp)
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel(lengthscale_prior=prior))
        # Some of gpytorch's buffers are expanded views, which a file of tensors cannot hold.
        for module in self.modules():
            for name, value in module.named_buffers(recurse=False):
                setattr(module, name, value.clone(memory_format=torch.contiguous_format))
        # The first call makes q equal to the prior: here, not in the first training step.
        self(torch.zeros(features, 1, 1))
        self._forget()

    def forward(self, z: Tensor) -> Any:
        """The prior at given points, as gpytorch's strategy asks for it."""
        return MultivariateNormal(self.mean_module(z), self.covar_module(z))

    def marginals(self, z: Float[Tensor, "B F"]) -> tuple[Float[Tensor, "B F"], Float[Tensor, "B F"]]:
        """Mean and variance of f_d(z_d) for every input; values must lie within the grid's bounds.

        The same as ``self(z.T[..., None])`` of gpytorch; its lazy operator gathers 16 entries of every covariance, where one
        batched product with the Cholesky factors does.
        """
        grid = self.variational_strategy.grid
        indices, weights = Interpolation().interpolate(grid, z.T.reshape(-1, 1))
        w = z.new_zeros(indices.shape[0], grid.shape[0]).scatter_add(1, indices, weights)
        w = w.reshape(z.shape[1], z.shape[0], -1)
        q = self.variational_strategy._variational_distribution
        mean = torch.einsum("fbm,fm->bf", w, q.variational_mean)
        spread = torch.bmm(w, q.chol_variational_covar.tril())
        return mean, spread.square().sum(dim=-1).T.clamp_min(_SMALLEST_VARIANCE)

    def kl(self) -> Tensor:
        """``sum_d KL(q(u_d) || p(u))``, 0-dim."""
        self._forget()
        divergence = self.variational_strategy.kl_divergence().sum()
        self._forget()
        return divergence

    def log_prior(self) -> Tensor:
        """Log-density of the kernel parameters' priors, 0-dim."""
        terms = [prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in self.named_priors()]
        return torch.stack(terms).sum()

    def hyper_parameters(self) -> list[nn.Parameter]:
        """Constant mean, output scale and length scale."""
        return [*self.mean_module.parameters(), *self.covar_module.parameters()]

    def _forget(self) -> None:
        # gpytorch keeps distributions with their graphs, which would outlive a step and break copies of the model.
        self.variational_strategy._clear_cache()
