"""Gamma functions compared with scipy, mpmath and torch.distributions: KL, truncated integrals, quantiles."""

from __future__ import annotations

import itertools
import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch.distributions import Gamma, kl_divergence

from ltnode.endtime import GammaDistribution, GammaMixtureDistribution, gamma_kl
from ltnode.errors import InputError

ALPHAS = (0.1, 0.3, 0.8, 1.0, 2.5, 12.0, 40.0, 100.0)
BETAS = (0.01, 0.2, 1.0, 4.0, 17.0, 50.0)
WINDOWS = ((0.0, 3.0), (0.5, 2.0))


def double(value: object) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


GRID = double(list(itertools.product(ALPHAS, BETAS))).T


@cache
def reference(alpha: float, beta: float, window: tuple[float, float]) -> tuple[float, float, float]:
    """Log-normaliser, E[log T] and E[T] of a truncated Gamma by scipy's adaptive quadrature in log time.

    The integrand is scaled by its maximum and split around its peak, so that the quadrature cannot miss the peak.
    """
    low = math.log(window[0]) if window[0] > 0 else -math.inf
    high = math.log(window[1]) if window[1] < math.inf else math.log((alpha + 60 + 20 * math.sqrt(alpha)) / beta)
    peak = min(max(math.log(alpha / beta), low), high)
    largest = alpha * peak - beta * math.exp(peak)
    low = max(low, peak - 45 / min(alpha, 4) - 12 / math.sqrt(alpha))
    widths = np.geomspace(0.1 / (alpha + beta * math.exp(peak)), max(high - low, 1e-6), 24)
    points = np.unique(np.clip(np.concatenate([[low, peak, high], peak - widths, peak + widths]), low, high))

    def integral(f) -> float:  # type: ignore[no-untyped-def]
        pieces = (
            integrate.quad(lambda x: f(x) * math.exp(alpha * x - beta * math.exp(x) - largest), a, b, epsabs=1e-15, epsrel=1e-12)[
                0
            ]
            for a, b in itertools.pairwise(points)
        )
        return math.fsum(pieces)

    total = integral(lambda x: 1.0)
    return math.log(total) + largest, integral(lambda x: x) / total, integral(math.exp) / total


def normaliser_of(q: GammaDistribution, t: float) -> torch.Tensor:
    """The log-normaliser by the public interface: unnormalised log-density minus log_prob at one time."""
    return (q.alpha - 1) * math.log(t) - q.beta * t - q.log_prob(torch.full((1, *q.batch_shape), t, dtype=torch.float64))[0]


def test_kl_equals_torch_over_the_whole_range() -> None:
    """For shapes and rates from 1e-3 to 1e4, equal to the closed form of torch.distributions to a relative 1e-9 in float64."""
    values = (1e-3, 0.02, 0.9, 7.0, 300.0, 1e4)
    a_q, b_q, a_p, b_p = double(list(itertools.product(values, repeat=4))).T
    expected = kl_divergence(Gamma(a_q, b_q), Gamma(a_p, b_p))
    torch.testing.assert_close(gamma_kl(a_q, b_q, a_p, b_p), expected, rtol=1e-9, atol=1e-9)


def test_kl_of_the_paper() -> None:
    """KL(Gamma(1, 1) || Gamma(2, 0.5)) = 1.46351 (published with five decimals)."""
    assert gamma_kl(1.0, 1.0, 2.0, 0.5).item() == pytest.approx(1.46351, abs=5e-6)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e4])
def test_kl_keeps_its_accuracy_near_zero_in_float32(alpha: float, beta: float) -> None:
    """For q close to p the textbook formula loses all digits; reference: mpmath with 60 digits, relative 1e-5."""
    mpmath.mp.dps = 60
    for da, db in itertools.product((0.0, 1e-6, -1e-4, 1e-2, 0.09, 0.11), (0.0, 1e-6, -1e-4, 1e-2, 0.49, 0.51)):
        parameters = torch.tensor([alpha, beta, alpha * (1 + da), beta * (1 + db)], dtype=torch.float32)
        a_q, b_q, a_p, b_p = (mpmath.mpf(v) for v in parameters.tolist())
        exact = (a_q - a_p) * mpmath.digamma(a_q) - mpmath.loggamma(a_q) + mpmath.loggamma(a_p)
        exact += a_p * mpmath.log(b_q / b_p) + a_q * (b_p - b_q) / b_q
        result = gamma_kl(*parameters)
        assert result.dtype == torch.float32
        assert result.item() == pytest.approx(float(exact), rel=1e-5, abs=1e-37)


@given(*[st.floats(-3.0, 4.0)] * 4)
def test_kl_is_not_negative_with_finite_right_gradients(a_q: float, b_q: float, a_p: float, b_p: float) -> None:
    """For parameters from 1e-3 to 1e4, gradients agree with torch to 1e-7 of their largest term in float64."""
    ours = [double(10.0**v).requires_grad_() for v in (a_q, b_q, a_p, b_p)]
    kl = gamma_kl(*ours)
    assert kl.item() >= 0
    gradients = torch.autograd.grad(kl, ours)
    expected = torch.autograd.grad(kl_divergence(Gamma(ours[0], ours[1]), Gamma(ours[2], ours[3])), ours)
    with torch.no_grad():
        scale = float(torch.digamma(ours[0]).abs() + torch.digamma(ours[2]).abs() + (ours[0] + ours[2]) / ours[1].clamp_max(1))
    for ours_, theirs in zip(gradients, expected, strict=True):
        assert bool(ours_.isfinite())
        assert ours_.item() == pytest.approx(theirs.item(), rel=1e-7, abs=1e-11 * scale)


def test_kl_passes_gradcheck_on_both_sides_of_its_switches() -> None:
    inputs = [
        double(v).requires_grad_()
        for v in ([2.0, 2.0, 0.3, 50.0], [1.0, 1.0, 2.0, 3.0], [2.1, 2.5, 0.3, 52.0], [1.2, 1.7, 2.0, 2.0])
    ]
    assert torch.autograd.gradcheck(gamma_kl, inputs)


def test_kl_takes_numbers_and_broadcasts() -> None:
    kl = gamma_kl(torch.ones(3, 1), torch.ones(4), 2.0, 0.5)
    assert kl.shape == (3, 4)
    assert kl.dtype == torch.float32
    assert gamma_kl(1.0, 1.0, 1.0, 1.0).item() == 0


@pytest.mark.parametrize("window", WINDOWS)
def test_truncated_normaliser_equals_scipy(window: tuple[float, float]) -> None:
    """For all shapes and rates, 1e-9 relative to max(1, |log Z|); the quadrature is accurate to 2e-12."""
    q = GammaDistribution(*GRID, window)
    expected = double([reference(a, b, window)[0] for a, b in GRID.T.tolist()])
    error = (normaliser_of(q, 1.1) - expected).abs() / expected.abs().clamp_min(1)
    assert error.max().item() < 1e-9


@pytest.mark.parametrize("window", WINDOWS)
def test_truncated_normaliser_equals_the_incomplete_gamma_function(window: tuple[float, float]) -> None:
    """A second reference, mpmath with 40 digits, at the extremes that encoders can reach: 1e-3 to 1e4."""
    mpmath.mp.dps = 40
    for alpha, beta in itertools.product((1e-3, 0.05, 1.0, 300.0, 1e4), (1e-3, 0.7, 40.0, 1e4)):
        q = GammaDistribution(double(alpha), double(beta), window)
        exact = mpmath.log(mpmath.gammainc(alpha, beta * window[0], beta * window[1])) - alpha * mpmath.log(beta)
        assert normaliser_of(q, 1.1).item() == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("window", [*WINDOWS, (0.0, math.inf)])
@pytest.mark.parametrize("prior", [(2.0, 0.5), (1.0, 0.01), (20.0, 12.0)])
def test_kl_equals_scipy(window: tuple[float, float], prior: tuple[float, float]) -> None:
    """KL between Gammas on the same window from scipy's moments and normalisers: relative 1e-8, absolute 1e-10."""
    truncation = window if window[1] < math.inf else None
    q = GammaDistribution(*GRID, truncation, (double(prior[0]), double(prior[1])))
    log_z_p = reference(*prior, window)[0]
    expected = []
    for alpha, beta in GRID.T.tolist():
        log_z, log_t, t = reference(alpha, beta, window)
        expected.append((alpha - prior[0]) * log_t - (beta - prior[1]) * t - log_z + log_z_p)
    torch.testing.assert_close(q.kl(), double(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("window", [*WINDOWS, None])
def test_mean_equals_scipy(window: tuple[float, float] | None) -> None:
    """Equal to a relative 1e-9."""
    q = GammaDistribution(*GRID, window)
    expected = double([reference(a, b, window or (0.0, math.inf))[2] for a, b in GRID.T.tolist()])
    torch.testing.assert_close(q.mean, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("window", [*WINDOWS, None])
def test_quantiles_and_cdf_equal_scipy(window: tuple[float, float] | None) -> None:
    """For levels from 1e-6 to 1 - 1e-6: times within 1e-6 (relative to max(1, t) if untruncated), probabilities within 1e-9.

    The formula with scipy, ppf(F(a) + u (F(b) - F(a))), is accurate only if the window contains at least 1e-6 of the mass; the
    next test covers the other cases.
    """
    u = np.array([1e-6, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999, 1 - 1e-6])
    checked = 0
    for alpha, beta in GRID.T.tolist():
        gamma = stats.gamma(alpha, scale=1 / beta)
        low, high = window or (0.0, math.inf)
        below, above = gamma.cdf(low), gamma.sf(high)
        mass = gamma.cdf(high) - below if below < 0.5 else gamma.sf(low) - above
        if mass < 1e-6:
            continue
        checked += 1
        expected = gamma.ppf(below + u * mass) if below < 0.5 else gamma.isf(gamma.sf(low) - u * mass)
        q = GammaDistribution(double(alpha), double(beta), window)
        tolerance = 1e-6 if window else 1e-6 * np.maximum(1, expected)
        assert np.all(np.abs(q.quantile(double(u)).numpy() - expected) < tolerance), (alpha, beta)
        t = np.quantile(expected, [0.1, 0.3, 0.5, 0.7])
        cdf = (gamma.cdf(t) - below) / mass if below < 0.5 else (gamma.sf(low) - gamma.sf(t)) / mass
        np.testing.assert_allclose(q.cdf(double(t)).numpy(), cdf, atol=1e-9)
    assert checked > 25


def test_quantiles_of_a_window_in_the_far_tail() -> None:
    """For windows with almost no mass: the probability below the quantile by scipy's quadrature, to 1e-8."""
    for alpha, beta, window in [
        (100.0, 0.01, (0.0, 3.0)),
        (100.0, 1.0, (0.5, 2.0)),
        (0.1, 50.0, (0.5, 2.0)),
        (3.0, 50.0, (1.0, 3.0)),
    ]:
        q = GammaDistribution(double(alpha), double(beta), window)
        log_z = reference(alpha, beta, window)[0]
        for u in (0.01, 0.5, 0.99):
            t = q.quantile(double([u])).item()
            left = reference(alpha, beta, (window[0], t))[0] - log_z
            assert math.exp(left) == pytest.approx(u, abs=1e-8)


@pytest.mark.parametrize("window", [*WINDOWS, None])
def test_gradcheck_of_density_kl_cdf_and_quantiles(window: tuple[float, float] | None) -> None:
    """Finite differences in float64 in shape, rate and time, and second derivatives of the KL."""
    alpha = double([0.1, 0.5, 1.0, 3.0, 60.0]).requires_grad_()
    beta = double([0.05, 1.0, 20.0, 0.5, 35.0]).requires_grad_()
    t = double([[0.6] * 5, [1.9] * 5]).requires_grad_()
    u = double([0.2, 0.5, 0.9])
    prior = (double(2.0), double(0.5))

    def q(alpha: torch.Tensor, beta: torch.Tensor) -> GammaDistribution:
        return GammaDistribution(alpha, beta, window, prior)

    assert torch.autograd.gradcheck(lambda a, b, t: q(a, b).log_prob(t), (alpha, beta, t))
    assert torch.autograd.gradcheck(lambda a, b: q(a, b).kl(), (alpha, beta))
    assert torch.autograd.gradcheck(lambda a, b, t: q(a, b).cdf(t), (alpha, beta, t))
    assert torch.autograd.gradcheck(lambda a, b: q(a, b).quantile(u), (alpha, beta), eps=1e-5, atol=1e-4)
    assert torch.autograd.gradgradcheck(lambda a, b: q(a, b).kl(), (alpha, beta))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [(0.0, 3.0), (0.1, 0.7), None])
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1.0, 1e4])
def test_density_at_the_ends_is_never_nan(alpha: float, window: tuple[float, float] | None, dtype: torch.dtype) -> None:
    """No NaN and finite gradients at 0, at denormal times, at the rounded ends of the window, and far outside."""
    a, b = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in (alpha, 1.0))
    t = torch.tensor([0.0, 1e-39, 0.1, 0.7, 3.0, 1e6], dtype=dtype, requires_grad=True)
    q = GammaDistribution(a, b, window)
    log_prob = q.log_prob(t)
    low, high = torch.tensor(window or (0.0, math.inf), dtype=dtype)
    assert torch.equal(log_prob.isfinite(), (t >= low) & (t <= high))
    gradients = torch.autograd.grad(log_prob[log_prob.isfinite()].sum(), [a, b, t])
    assert all(bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("window", [(0.0, 3.0), None])
def test_mixture_kl_equals_scipy(window: tuple[float, float] | None) -> None:
    """A broad, a medium and a narrow component; scipy's quadrature of q log(q / p), split at the peaks, to 1e-8."""
    weights, alphas, betas = (0.3, 0.5, 0.2), (0.5, 9.0, 100.0), (1.0, 6.0, 50.0)
    high = window[1] if window else 80.0

    def pdf(alpha: float, beta: float, t: float) -> float:
        gamma = stats.gamma(alpha, scale=1 / beta)
        return gamma.pdf(t) / (gamma.cdf(high) if window else 1.0)

    def integrand(x: float) -> float:
        t = math.exp(x)
        q = sum(w * pdf(a, b, t) for w, a, b in zip(weights, alphas, betas, strict=True))
        return t * q * math.log(q / pdf(2.0, 0.5, t))

    edges = [-60.0, -20.0, -5.0, -1.0, 0.0, 0.5, 0.6, 0.7, 0.8, 0.95, math.log(3.0), math.log(high)]
    expected = math.fsum(
        integrate.quad(integrand, a, b, epsabs=1e-11, epsrel=1e-10)[0] for a, b in itertools.pairwise(edges) if a < b
    )
    q = GammaMixtureDistribution(double(weights).log(), double(alphas), double(betas), window, (double(2.0), double(0.5)))
    assert q.kl().item() == pytest.approx(expected, rel=1e-8)


def test_mixture_quantiles_cross_a_gap() -> None:
    """Two narrow, distant components: half of the mass on each side of the gap; the cdf is inverted to 1e-9."""
    q = GammaMixtureDistribution(double([0.0, 0.0]), double([100.0, 100.0]), double([100.0, 10.0]))
    u = double([0.1, 0.4, 0.49999, 0.50001, 0.6, 0.9])
    t = q.quantile(u)
    assert t[2].item() < 2
    assert t[3].item() > 5
    torch.testing.assert_close(q.cdf(t), u, rtol=0, atol=1e-9)


@pytest.mark.parametrize("window", WINDOWS)
def test_mixture_passes_gradcheck(window: tuple[float, float]) -> None:
    logits, alpha, beta = (double(v).requires_grad_() for v in ([0.3, -0.2], [0.7, 6.0], [1.0, 4.0]))
    prior = (double(2.0), double(0.5))
    t = double([0.6, 1.5])

    def q(*parameters: torch.Tensor) -> GammaMixtureDistribution:
        return GammaMixtureDistribution(*parameters, window, prior)

    assert torch.autograd.gradcheck(lambda *p: q(*p).log_prob(t), (logits, alpha, beta))
    assert torch.autograd.gradcheck(lambda *p: q(*p).kl(), (logits, alpha, beta))
    assert torch.autograd.gradcheck(lambda *p: q(*p).quantile(double([0.3, 0.8])), (logits, alpha, beta), eps=1e-5, atol=1e-4)


def test_a_distribution_without_prior_has_no_kl() -> None:
    with pytest.raises(InputError, match="without a prior"):
        GammaDistribution(double(1.0), double(1.0), (0.0, 3.0)).kl()


@pytest.mark.gpu
def test_gpu_agrees_with_cpu_and_the_loss_is_captured_in_a_graph() -> None:
    """Quantiles, density and KL agree to 1e-10; no operation synchronises, so the loss can be captured in a CUDA graph."""
    prior = (double(2.0), double(0.5))
    u, t = double([0.1, 0.5, 0.9]), torch.full((2, GRID.shape[1]), 1.1).double()
    here = GammaDistribution(*GRID, (0.0, 3.0), prior)
    grid, t_there = GRID.cuda().requires_grad_(), t.cuda()
    prior_there = (prior[0].cuda(), prior[1].cuda())

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        q = GammaDistribution(*grid, (0.0, 3.0), prior_there)
        return q.kl(), q.log_prob(t_there)

    there = GammaDistribution(*grid.detach(), (0.0, 3.0), prior_there)
    torch.testing.assert_close(there.quantile(u).cpu(), here.quantile(u), rtol=1e-10, atol=1e-10)
    loss()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kl, log_prob = loss()
    graph.replay()
    torch.testing.assert_close(kl.cpu(), here.kl(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(log_prob.cpu(), here.log_prob(t), rtol=1e-10, atol=1e-10)
