"""Tests that every end-time class must pass: inherit `EndTimeContract` and define how to build an instance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from ltnode.endtime import EndTime
from ltnode.errors import InputError


class EndTimeContract:
    """Properties of an end-time class, checked in float64.

    Subclasses define `make`, and set `has_density` to False for a point mass. `inputs` are the inputs of amortised end-times.
    """

    has_density = True
    inputs: torch.Tensor | None = None

    def make(self) -> EndTime:
        """An end-time in a generic state, neither at its prior nor at its defaults."""
        raise NotImplementedError

    def make_at_prior(self) -> EndTime:
        """The same class with q equal to the prior."""
        raise NotImplementedError

    @pytest.fixture
    def end_time(self) -> EndTime:
        return self.make().double()

    def batch(self) -> tuple[int, ...]:
        return () if self.inputs is None else (len(self.inputs),)

    def columns(self, values: torch.Tensor) -> list[np.ndarray]:
        """One array per distribution of the batch."""
        return list(values.detach().reshape(len(values), -1).T.numpy())

    def test_samples_have_the_right_shape_and_lie_in_the_support(self, end_time: EndTime, generator: torch.Generator) -> None:
        samples = end_time.sample(500, self.inputs, generator)
        low = end_time.window[0] if end_time.truncate and self.has_density else 0.0
        assert samples.shape == (500, *self.batch())
        assert not samples.requires_grad
        assert bool(samples.isfinite().all())
        assert bool((samples >= low).all())
        assert end_time.horizon is None or bool((samples <= end_time.horizon).all())

    def test_samples_follow_the_cdf(self, end_time: EndTime, generator: torch.Generator) -> None:
        """Kolmogorov-Smirnov test with 4,000 draws and a fixed seed: p < 1e-3 would indicate a wrong sampler."""
        q = end_time(self.inputs)
        samples = q.sample(4000, generator)
        if not self.has_density:
            assert bool((samples == q.mean).all())
            return
        for column in self.columns(q.cdf(samples)):
            assert stats.kstest(column, "uniform").pvalue > 1e-3

    def test_quantile_inverts_the_cdf(self, end_time: EndTime) -> None:
        """Quantiles are non-decreasing, and the cdf inverts them to 1e-9, the accuracy of the inversion at moderate levels."""
        u = torch.linspace(0.001, 0.999, 57, dtype=torch.float64)
        q = end_time(self.inputs)
        times = end_time.quantile(u, self.inputs)
        assert times.shape == (57, *self.batch())
        assert bool((times.diff(dim=0) >= 0).all())
        if self.has_density:
            levels = u.reshape(-1, *[1] * len(self.batch())).expand_as(times)
            torch.testing.assert_close(q.cdf(times), levels, rtol=0, atol=1e-9)
            torch.testing.assert_close(q.quantile(q.cdf(times)), times, rtol=0, atol=1e-7)

    def test_quantile_levels_zero_and_one_stay_in_the_support(self, end_time: EndTime) -> None:
        ends = end_time.quantile([0.0, 1.0], self.inputs)
        assert bool(ends.isfinite().all())
        assert bool((ends[0] <= ends[1]).all())
        assert end_time.horizon is None or bool((ends <= end_time.horizon).all())

    def test_density_integrates_to_one(self, end_time: EndTime) -> None:
        """scipy's adaptive quadrature of exp(log_prob) in log time, to 1e-9; less than e^-200 lies below the first edge."""
        if not self.has_density:
            with pytest.raises(InputError, match="no density"):
                end_time.log_prob(torch.ones(3, dtype=torch.float64), self.inputs)
            return
        q = end_time(self.inputs)
        low, high = end_time.window if end_time.truncate else (0.0, 200.0)
        edges = np.linspace(math.log(max(low, 1e-87)), math.log(high), 16)

        def density_of_log(x: float) -> np.ndarray:
            t = torch.full((1, *self.batch()), math.exp(x), dtype=torch.float64).clamp(low, high)
            return (q.log_prob(t).exp() * t).detach().numpy().ravel()

        total = sum(integrate.quad_vec(density_of_log, a, b, epsabs=1e-11, epsrel=1e-10)[0] for a, b in itertools.pairwise(edges))
        np.testing.assert_allclose(total, 1.0, atol=1e-8)

    def test_density_is_the_slope_of_the_cdf(self, end_time: EndTime) -> None:
        """The derivative of the cdf equals exp(log_prob) to 1e-9, although both use different code."""
        if not self.has_density:
            return
        q = end_time(self.inputs)
        t = q.quantile(torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)).detach().requires_grad_()
        (slope,) = torch.autograd.grad(q.cdf(t).sum(), t)
        torch.testing.assert_close(slope, q.log_prob(t).exp(), rtol=1e-9, atol=1e-12)

    def test_density_is_zero_outside_of_the_support_with_finite_gradients(self, end_time: EndTime) -> None:
        if not self.has_density or not end_time.truncate:
            return
        outside = torch.tensor([end_time.window[1] * 1.01, 1e6], dtype=torch.float64)
        t = outside.reshape(-1, *[1] * len(self.batch())).repeat(1, *self.batch()).requires_grad_()
        log_prob = end_time.log_prob(t, self.inputs)
        assert bool((log_prob == -math.inf).all())
        if end_time.learnable:
            gradients = torch.autograd.grad(log_prob.exp().sum(), [t, *end_time.parameters()])
            assert all(bool((g == 0).all()) for g in gradients)

    def test_tail_is_one_minus_the_cdf(self, end_time: EndTime) -> None:
        """Equal up to rounding, and exactly zero at the horizon."""
        if end_time.horizon is not None:
            assert bool((end_time.tail(end_time.horizon, self.inputs) == 0).all())
        for b in (0.0, 0.4, 1.3, 2.9, 50.0):
            at = torch.full((1, *self.batch()), b, dtype=torch.float64)
            torch.testing.assert_close(end_time.tail(b, self.inputs), 1 - end_time(self.inputs).cdf(at)[0], rtol=0, atol=1e-14)

    def test_mean_is_the_integral_of_the_tail(self, end_time: EndTime) -> None:
        """E[T] = int P(T > b) db for T >= 0; the trapezoidal rule with 4,000 steps is accurate to 1e-3."""
        q = end_time(self.inputs)
        b = torch.linspace(0.0, end_time.horizon or 80.0, 4001, dtype=torch.float64)
        grid = b.reshape(-1, *[1] * len(self.batch())).expand(-1, *self.batch())
        torch.testing.assert_close(torch.trapezoid(1 - q.cdf(grid), b, dim=0), q.mean, rtol=2e-3, atol=2e-3)

    def test_kl_is_not_negative_and_zero_only_at_the_prior(self, end_time: EndTime) -> None:
        """At q == p two quadratures of the same integral cancel up to rounding, hence 1e-10."""
        kl = end_time.kl(self.inputs)
        assert kl.shape == self.batch()
        if not end_time.learnable:
            assert float(kl) == 0
            return
        assert bool((kl > 1e-3).all())
        at_prior = self.make_at_prior().double().kl(self.inputs)
        assert bool((at_prior >= 0).all())
        torch.testing.assert_close(at_prior, torch.zeros_like(at_prior), rtol=0, atol=1e-10)

    def test_kl_is_the_mean_log_ratio_of_the_densities(self, end_time: EndTime, generator: torch.Generator) -> None:
        """Monte Carlo estimate with 40,000 draws, within five standard errors."""
        if not end_time.learnable:
            return
        q, p = end_time(self.inputs), self.make_at_prior().double()(self.inputs)
        t = q.sample(40_000, generator)
        ratio = (q.log_prob(t) - p.log_prob(t)).detach()
        error = ratio.std(0) / math.sqrt(len(t))
        assert bool(((ratio.mean(0) - q.kl().detach()).abs() < 5 * error).all())

    @pytest.mark.no_typecheck  # the shape checks would double the run time of this loop
    def test_parameters_stay_valid_under_aggressive_training(self) -> None:
        """Losses and parameters stay finite in 200 SGD steps with learning rate 10 on a loss of scale 1e6 that changes sign."""
        end_time = self.make().float()
        parameters = list(end_time.variational_parameters())
        assert bool(parameters) == end_time.learnable
        if not parameters:
            return
        inputs = None if self.inputs is None else self.inputs.float()
        optimiser = torch.optim.SGD(parameters, lr=10.0, momentum=0.9)
        for step in range(200):
            times = end_time.training_times(4, batch=self.batch()[0] if self.batch() else None)
            q = end_time(inputs)
            loss = 1e6 * (-1) ** (step // 20) * (q.log_prob(times).mean() + q.kl().mean())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            end_time.constrain_()
            assert bool(loss.isfinite()), step
            assert all(bool(p.isfinite().all()) for p in parameters), step
        assert all(math.isfinite(v) for v in end_time.describe(inputs).values())

    def test_state_dict_round_trip(self, end_time: EndTime) -> None:
        other = self.make().double()
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.7).add_(0.1)
        other.load_state_dict(end_time.state_dict())
        assert other.describe(self.inputs) == end_time.describe(self.inputs)
        if end_time.learnable:
            assert any(name.startswith("prior") for name in end_time.state_dict())

    def test_a_generator_makes_draws_repeatable_and_leaves_the_global_one_alone(self, end_time: EndTime) -> None:
        before = torch.get_rng_state()
        draws = [end_time.sample(7, self.inputs, torch.Generator().manual_seed(3)) for _ in range(2)]
        times = [
            end_time.training_times(7, 5, scheme, generator=torch.Generator().manual_seed(3))
            for scheme in ("iid", "grid")
            for _ in range(2)
        ]
        assert torch.equal(*draws)
        assert torch.equal(times[0], times[1])
        assert torch.equal(times[2], times[3])
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("scheme", ["iid", "grid"])
    def test_training_times_cover_the_window(self, end_time: EndTime, scheme: str, generator: torch.Generator) -> None:
        times = end_time.training_times(12, 30, scheme, generator=generator, dtype=torch.float32)
        assert times.shape == ((12, 30) if end_time.amortized else (12,))
        assert times.dtype == torch.float32
        low, high = end_time.window
        assert bool(((times > low) & (times <= high)).all())
        if not end_time.amortized:
            assert bool((times.diff() >= 0).all())
        if self.has_density:
            assert bool((end_time.log_prob(times, None if self.inputs is None else torch.zeros(30, 1).double()) > -1e4).all())

    def test_float32_agrees_with_float64(self, end_time: EndTime) -> None:
        """Computations use float64, so only inputs and outputs are rounded: 1e-5 relative."""
        single = self.make().float()
        single.load_state_dict(end_time.state_dict())
        inputs = None if self.inputs is None else self.inputs.float()
        u = torch.tensor([0.02, 0.3, 0.8])
        wide, narrow = end_time.quantile(u, self.inputs), single.quantile(u, inputs)
        assert narrow.dtype == torch.float32
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(single.kl(inputs).double(), end_time.kl(self.inputs), rtol=1e-5, atol=1e-6)
        if self.has_density:
            density = single.log_prob(narrow, inputs)
            assert density.dtype == torch.float32
            torch.testing.assert_close(density.double(), end_time.log_prob(wide, self.inputs), rtol=1e-4, atol=1e-5)

    def test_description_is_plain_numbers_and_the_printed_form_readable(self, end_time: EndTime) -> None:
        values = end_time.describe(self.inputs)
        assert {"mean", "q05", "q50", "q95", "tail"} <= values.keys()
        assert all(type(v) is float and math.isfinite(v) for v in values.values())
        assert values["q05"] <= values["q50"] <= values["q95"]
        assert repr(end_time).startswith(f"{type(end_time).__name__}(")
        assert "tensor" not in repr(end_time)
        assert f"mean {values['mean']:.2f}, 5-95 % {values['q05']:.2f} to {values['q95']:.2f}" in repr(end_time(self.inputs))

    @pytest.mark.no_typecheck
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda e, x: e.sample(0, x), "n must be an integer of at least 1, not 0"),
            (lambda e, x: e.sample(2.5, x), "n must be an integer"),
            (lambda e, x: e.quantile(torch.tensor([0.5, 1.2]), x), r"must lie in \[0, 1\], not in \[0.5, 1.2\]"),
            (lambda e, x: e.quantile(torch.tensor([math.nan]), x), r"must lie in \[0, 1\]"),
            (lambda e, x: e.quantile(torch.tensor(0.5), x), "u must have shape"),
            (lambda e, x: e.tail(-1.0, x), "b must be a time of at least 0, not -1.0"),
            (lambda e, x: e.log_prob(torch.tensor(0.5), x), "t must have shape"),
            (lambda e, x: e.training_times(0, 3), "n must be an integer"),
            (lambda e, x: e.training_times(3, 3, scheme="gird"), "Did you mean 'grid'"),
        ],
    )
    def test_mistakes_in_calls_are_named(self, end_time: EndTime, call, message) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(InputError, match=message):
            call(end_time, self.inputs)

    @pytest.mark.no_typecheck
    def test_negative_times_are_refused(self, end_time: EndTime) -> None:
        t = torch.full((2, *self.batch()), -0.5, dtype=torch.float64)
        with pytest.raises(InputError, match="at least 0"):
            end_time.log_prob(t, self.inputs)
