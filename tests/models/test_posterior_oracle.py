"""The optimum of the posterior: with a frozen network it is known independently of the objective.

For a cross-entropy CE(T) that does not change, ``E_q[CE] + lambda KL(q || p)`` is lambda times
``KL(q || p(T) exp(-CE(T)/lambda))`` up to a constant, so the trained q must be the closest Gamma to that target.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import Tensor, nn

from ltnode import GammaTime, LatentTimeODE
from ltnode.models import ObjectiveOptions

PRIOR = (2.0, 0.5)


class Clock(nn.Module):
    """dh/dt = 1 from h(0) = 0: the state is the time."""

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return torch.ones_like(h)


class KnownCrossEntropy(nn.Module):
    """Logits (-z(T), 0), for which label 0 has the cross-entropy softplus(z(T))."""

    def forward(self, h: Tensor) -> Tensor:
        z = 3 * (h - 1) ** 2 - 2
        return torch.cat([-z, torch.zeros_like(z)], dim=1)


class ConstantCrossEntropy(nn.Module):
    """Logits for which label 0 has the same cross-entropy at all times."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.logit = -math.log(math.expm1(value))

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([torch.full_like(h, self.logit), torch.zeros_like(h)], dim=1)


def frozen_model(head: nn.Module, truncate: bool, **objective: object) -> tuple[LatentTimeODE, Tensor, Tensor]:
    end_time = GammaTime(prior=PRIOR, window=(0.0, 3.0), truncate=truncate)
    options = ObjectiveOptions(**objective)  # type: ignore[arg-type]
    model = LatentTimeODE(nn.Identity(), Clock(), head, end_time, objective=options).double()
    return model, torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)


def midpoints(n: int = 3000) -> Tensor:
    """Times on which the mean over the window approximates an integral to 1e-5."""
    return 3 * (torch.arange(n, dtype=torch.float64) + 0.5) / n


def train_to_the_end(model: LatentTimeODE, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Minimise the loss over alpha and beta until they converge."""
    optimizer = torch.optim.LBFGS(
        model.end_time.parameters(), max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model.loss(x, y, times=midpoints())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert isinstance(model.end_time, GammaTime)
    return model.end_time.alpha.item(), model.end_time.beta.item()


def closest_gamma(kl_weight: float) -> tuple[float, float]:
    """The truncated Gamma nearest in KL(q || target) to p(T) exp(-CE(T)/lambda), on a fine grid."""
    t = np.linspace(1e-6, 3.0, 20_001)
    target = stats.gamma.logpdf(t, PRIOR[0], scale=1 / PRIOR[1]) - np.logaddexp(0.0, 3 * (t - 1) ** 2 - 2) / kl_weight

    def divergence(log_parameters: np.ndarray) -> float:
        alpha, beta = np.exp(log_parameters)
        log_q = (alpha - 1) * np.log(t) - beta * t
        log_q -= log_q.max()
        log_q -= math.log(integrate.trapezoid(np.exp(log_q), t))
        return float(integrate.trapezoid(np.exp(log_q) * (log_q - target), t))

    found = optimize.minimize(divergence, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    alpha, beta = np.exp(found.x)
    return float(alpha), float(beta)


@pytest.mark.parametrize("kl_weight", [0.3, 1.0])
@pytest.mark.parametrize("weighting", ["integral", "normalised"])
def test_posterior_ends_at_the_gamma_closest_to_the_tempered_posterior(weighting: str, kl_weight: float) -> None:
    """With the network frozen, training q ends at argmin KL(q || p(T) exp(-CE(T)/lambda)); to 1e-3 of alpha and beta.

    The reference does not use the objective: it is found on a grid of 20,001 times by a derivative-free search.
    """
    model, x, y = frozen_model(KnownCrossEntropy(), truncate=True, weighting=weighting, kl_weight=kl_weight)
    assert train_to_the_end(model, x, y) == pytest.approx(closest_gamma(kl_weight), rel=1e-3)


def mean_gradient(alpha: float, beta: float, draws: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of the gradient in (alpha, beta) over the times that training draws (10, stratified)."""
    model, x, y = frozen_model(KnownCrossEntropy(), truncate=True, weighting="integral", kl_weight=1.0)
    end_time = model.end_time
    with torch.no_grad():
        end_time.alpha.fill_(alpha)
        end_time.beta.fill_(beta)
    gradients = [torch.stack(torch.autograd.grad(model.loss(x, y), (end_time.alpha, end_time.beta))) for _ in range(draws)]
    values = torch.stack(gradients).numpy()
    return values.mean(axis=0), values.std(axis=0) / math.sqrt(draws)


def test_random_times_pull_to_the_same_posterior() -> None:
    """With the times that training draws, the mean gradient vanishes at the oracle (to 4 standard errors) and only there."""
    alpha, beta = closest_gamma(1.0)
    mean, error = mean_gradient(alpha, beta)
    assert (np.abs(mean) < 4 * error).all()
    mean, error = mean_gradient(1.2 * alpha, beta)
    assert (np.abs(mean) > 4 * error).any()


def density_optimum(kl_weight: float, cross_entropy: float) -> tuple[float, float, float]:
    """Alpha, beta and P(T > 3) after training with density weights, no truncation and a constant cross-entropy."""
    head = ConstantCrossEntropy(cross_entropy)
    model, x, y = frozen_model(head, truncate=False, weighting="density", kl_weight=kl_weight)
    alpha, beta = train_to_the_end(model, x, y)
    return alpha, beta, float(stats.gamma.sf(3.0, alpha, scale=1 / beta))


def test_density_weights_push_the_posterior_out_of_the_window() -> None:
    """Without truncation P(T > 3) grows with the cross-entropy, from the prior's 0.56 on: the weights reward leaving."""
    shares = [density_optimum(0.1, value)[2] for value in (0.001, 0.1, 0.3, 1.0)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.558, abs=0.005)
    assert shares[-1] > 0.9


@pytest.mark.parametrize(
    ("kl_weight", "cross_entropy", "measured"),
    [(0.1, 0.1, (2.18, 0.50, 0.61)), (0.1, 0.3, (2.81, 0.57, 0.72)), (0.05, 0.1, (2.40, 0.52, 0.66))],
)
def test_density_weights_end_where_sgd_was_seen_to_end(
    kl_weight: float, cross_entropy: float, measured: tuple[float, float, float]
) -> None:
    """SGD stops a little short of the optimum, hence 3 % of alpha and beta, and 0.005."""
    alpha, beta, beyond = density_optimum(kl_weight, cross_entropy)
    assert (alpha, beta) == pytest.approx(measured[:2], rel=0.03)
    assert beyond == pytest.approx(measured[2], abs=0.005)


def test_truncation_keeps_the_posterior_inside() -> None:
    """With a constant cross-entropy the truncated posterior ends at the prior for all weightings."""
    for weighting in ("integral", "normalised"):
        head = ConstantCrossEntropy(1.0)
        model, x, y = frozen_model(head, truncate=True, weighting=weighting, kl_weight=0.1)
        assert train_to_the_end(model, x, y) == pytest.approx(PRIOR, rel=1e-2)
