"""Regression metrics compared with scipy, torch.distributions and numerical integration.

The tolerance is 1e-12 for closed forms in float64 with values of order 1, and 1e-8 for the numerically integrated CRPS.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from ltnode import metrics
from ltnode.errors import InputError

EXACT = 1e-12


def gaussians(n: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Calibrated float64 predictions: the targets are drawn from them."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n, generator=generator, dtype=torch.float64)
    std = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    return mean, std, mean + std * torch.randn(n, generator=generator, dtype=torch.float64)


def test_scores_equal_scipy():
    """RMSE from numpy; NLL and coverage from scipy.stats.norm."""
    mean, std, target = gaussians()
    m, s, y = mean.numpy(), std.numpy(), target.numpy()
    assert metrics.rmse(mean, target) == pytest.approx(np.sqrt(np.mean((m - y) ** 2)), abs=EXACT)
    assert metrics.gaussian_nll(mean, std, target) == pytest.approx(-stats.norm(m, s).logpdf(y).mean(), abs=EXACT)
    for level in (0.5, 0.9, 0.95):
        low, high = stats.norm(m, s).interval(level)
        expected = np.mean((low <= y) & (y <= high))
        assert metrics.interval_coverage(mean, std, target, level) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(("mean", "std", "target"), [(0.0, 1.0, 0.3), (1.0, 0.2, -1.5), (-2.0, 3.0, -2.0)])
def test_crps_is_the_integral_of_its_definition(mean, std, target):
    """The integral of (F(x) - [x >= y])^2 by adaptive quadrature on both sides of y."""
    below = integrate.quad(lambda x: stats.norm.cdf(x, mean, std) ** 2, mean - 40 * std, target, epsabs=1e-10)[0]
    above = integrate.quad(lambda x: stats.norm.sf(x, mean, std) ** 2, target, mean + 40 * std, epsabs=1e-10)[0]
    arguments = (torch.tensor([v], dtype=torch.float64) for v in (mean, std, target))
    assert metrics.crps_gaussian(*arguments) == pytest.approx(below + above, abs=1e-8)


@given(st.floats(-5, 5), st.floats(1e-3, 5), st.floats(-5, 5))
def test_crps_lies_between_zero_and_the_absolute_error_plus_spread(mean, std, target):
    """0 <= CRPS <= |y - mean| + std / sqrt(pi), and CRPS -> |y - mean| as std -> 0."""
    m, s, y = (torch.tensor([v], dtype=torch.float64) for v in (mean, std, target))
    assert -EXACT <= metrics.crps_gaussian(m, s, y) <= abs(target - mean) + std / math.sqrt(math.pi) + EXACT
    assert metrics.crps_gaussian(m, s * 0 + 1e-9, y) == pytest.approx(abs(target - mean), abs=1e-8)


def test_gaussian_entropy_equals_torch_distributions():
    """Mean of Normal.entropy; a variance of zero is replaced by 1e-12."""
    variance = torch.tensor([0.01, 1.0, 7.4], dtype=torch.float64)
    expected = torch.distributions.Normal(torch.zeros_like(variance), variance.sqrt()).entropy().mean().item()
    assert metrics.gaussian_entropy(variance) == pytest.approx(expected, abs=EXACT)
    floor = 0.5 * math.log(2 * math.pi * math.e * 1e-12)
    assert metrics.gaussian_entropy(torch.zeros(2)) == pytest.approx(floor, abs=EXACT)


def test_float32_columns_are_accepted():
    """Network outputs of shape (B, 1) give the same value as (B,), accumulated in float64."""
    mean, std, target = gaussians()
    columns = [v.float()[:, None] for v in (mean, std, target)]
    assert metrics.gaussian_nll(*columns) == pytest.approx(metrics.gaussian_nll(mean, std, target), abs=1e-5)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda v: metrics.rmse(v, v[:, None]), "shapes"),
        (lambda v: metrics.rmse(v, v * math.nan), "target"),
        (lambda v: metrics.rmse(v.long(), v), "floating"),
        (lambda v: metrics.gaussian_nll(v, 0 * v, v), "positive"),
        (lambda v: metrics.crps_gaussian(v, -v, v), "positive"),
        (lambda v: metrics.interval_coverage(v, v, v, level=1.0), "level"),
        (lambda v: metrics.interval_coverage(v, 0 * v, v), "positive"),
        (lambda v: metrics.gaussian_entropy(-v), "negative"),
        (lambda v: metrics.gaussian_entropy(v[:0]), "empty"),
    ],
)
def test_bad_input_is_refused(call, match):
    """In particular (B,) with (B, 1), which would broadcast to a plausible but wrong number."""
    with pytest.raises(InputError, match=match):
        call(torch.tensor([1.0, 2.0]))
