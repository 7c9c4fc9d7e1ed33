"""The kernel of Gamma posteriors, on CUDA and emulated, against the same quadrature in torch."""

from __future__ import annotations

import pytest
import torch

from kernels.comparisons import as_error
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.cuda import gamma_posterior
from ltnode.endtime import GammaDistribution
from ltnode.endtime.gamma import quadrature_rule

SHAPES = torch.tensor([0.01, 0.3, 0.9, 1.0, 1.35, 2.0, 7.5, 40.0, 100.0])
RATES = torch.tensor([0.01, 0.5, 1.0, 0.8, 4.0, 30.0, 100.0])
WINDOWS = [None, (0.0, 3.0), (0.5, 2.0)]


def compared(window: tuple[float, float] | None, device: str, per_input: bool) -> dict[str, float]:
    """Return the largest errors of log-densities, divergence and gradients, relative to 1 + the size of the values."""
    alpha, beta = (v.reshape(-1).to(device).requires_grad_() for v in torch.meshgrid(SHAPES, RATES, indexing="ij"))
    times = torch.tensor([0.0, 1e-4, 0.3, 0.5, 1.1, 2.0, 2.9, 3.0, 3.5], device=device)
    if per_input:
        times = times[:, None] * torch.linspace(0.5, 1.0, len(alpha), device=device)
    prior = GammaDistribution(torch.tensor(2.0, device=device), torch.tensor(0.5, device=device), window)
    q = GammaDistribution(alpha, beta, window, prior)
    expected = q.log_prob(times if per_input else times[:, None].expand(-1, len(alpha))), q.kl()
    family = gamma_posterior.Family(window, prior.in_float64, quadrature_rule(torch.device(device)))
    actual = gamma_posterior.posterior_terms(alpha, beta, times, family)
    weights = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(0)).to(device)
    finite = torch.isfinite(expected[0])
    assert torch.equal(torch.isfinite(actual[0]), finite)
    errors = {}
    for name, (a, b) in {"log_prob": (actual[0][finite], expected[0][finite]), "kl": (actual[1], expected[1])}.items():
        errors[name] = as_error(((a - b).abs() / (1 + b.abs())).max())
    gradients = [
        torch.autograd.grad((torch.where(finite, log_q, 0.0) * weights).sum() + (kl * 3).sum(), (alpha, beta), retain_graph=True)
        for log_q, kl in (actual, expected)
    ]
    for name, a, b in zip(("alpha", "beta"), *gradients, strict=True):
        errors[f"grad {name}"] = as_error(((a - b).abs() / (1 + b.abs())).max())
    return errors


@needs_compiler
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("per_input", [False, True])
def test_the_emulated_kernel_equals_the_distribution(
    monkeypatch: pytest.MonkeyPatch, window: tuple[float, float] | None, per_input: bool
):
    """Both compute in float64 and round to float32 (6e-8); the gradients of torch pass through a few casts to float32."""
    emulate(monkeypatch)
    errors = compared(window, "cpu", per_input)
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.gpu
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("per_input", [False, True])
def test_the_kernel_equals_the_distribution(window: tuple[float, float] | None, per_input: bool):
    """The same bounds on CUDA."""
    errors = compared(window, "cuda", per_input)
    assert max(errors.values()) < 1e-5, errors
