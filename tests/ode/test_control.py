"""Step-size control: limits of the factor, the starting step, and the loop with scripted error norms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ode_problems import ADAPTIVE, DETEST, F64, swirl
from scipy.integrate._ivp.common import select_initial_step

from ltnode.ode import TABLEAUS, Status
from ltnode.ode.controller import Controller, initial_step
from ltnode.ode.search import StepControl, Tolerance

DOPRI = Controller(error_order=4)


class Script:
    """A stub that returns given error norms and records the trial steps of the loop."""

    def __init__(self, norms: list[float]) -> None:
        self.norms = iter(norms)
        self.trials: list[tuple[float, float]] = []
        self.committed: list[tuple[float, float]] = []

    def __call__(self, t: float, t_new: float) -> tuple[float, Callable[[], None]]:
        self.trials.append((t, t_new))
        return next(self.norms), lambda: self.committed.append((t, t_new))

    @property
    def sizes(self) -> list[float]:
        return [b - a for a, b in self.trials]


def adaptive_loop(
    script: Script, t: float, t_end: float, h: float, controller: Controller, tolerance: Tolerance
) -> tuple[list[float], list[float], Status | None, int]:
    """Drive the control with scripted error norms; return edges, norms, status and number of rejections."""
    control = StepControl(t, t_end, h, controller, tolerance)
    while (trial := control.trial()) is not None:
        norm, commit = script(*trial)
        if control.accepts(norm):
            commit()
    return control.edges, control.norms, control.status, control.rejected


def _factor(norm: float, controller: Controller = DOPRI) -> float:
    return float(controller.factor(torch.tensor(norm, dtype=F64)))


@pytest.mark.parametrize(
    ("norm", "factor"),
    [
        (0.0, 10.0),  # no error: the largest growth
        (1e-12, 10.0),
        (0.9**5 * 0.5**5, 2.0),  # 0.9 E^(-1/5) between the limits
        (0.9**5, 1.0),  # exactly the size that the safety factor allows
        (0.999999999999, 1.0),  # accepted: never shrinks
        (1.0, 0.9),  # rejected: shrinks at least by the safety factor
        (32.0, 0.45),
        (1e12, 0.2),
        (math.inf, 0.2),
        (math.nan, 0.2),
    ],
)
def test_factor_of_the_next_step(norm: float, factor: float) -> None:
    """0.9 E^(-1/5), clipped to [1, 10] after an acceptance and to [0.2, 0.9] after a rejection; computed by hand in float64."""
    assert _factor(norm) == pytest.approx(factor, rel=1e-12)


@given(st.floats(0, 1e6, allow_nan=False), st.sampled_from([2, 4]))
def test_factor_is_monotone_and_within_its_limits(norm: float, order: int) -> None:
    """A larger error never gives a larger step, for any order of the error estimate."""
    controller = Controller(order)
    factor, worse = _factor(norm, controller), _factor(norm * 1.5 + 1e-9, controller)
    assert worse <= factor
    assert (1.0 <= factor <= 10.0) if norm < 1 else (0.2 <= factor <= 0.9)


def test_factor_works_element_wise_for_every_sample() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, float("nan")])
    assert DOPRI.factor(norms).tolist() == pytest.approx([10.0, 0.9 * 0.5**-0.2, 0.9, 0.2], rel=1e-7)  # norms are float32
    assert DOPRI.accepts(norms).tolist() == [True, True, False, False]


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("problem", DETEST, ids=lambda p: p.name)
def test_starting_step_equals_that_of_scipy(problem, method: str) -> None:
    """Reference: scipy's select_initial_step, the same formula (Hairer, Norsett, Wanner II.4) with a cap that is not reached.

    Same arithmetic in float64 up to the order of sums, so 1e-12.
    """
    tableau = TABLEAUS[method]
    y = torch.tensor([problem.y0], dtype=F64)
    k = problem.f(torch.tensor(0.0, dtype=F64), y)
    ours = float(initial_step(problem.f, tableau, 0.0, y, k, 1e-5, 1e-7, per_sample=False))

    def numpy_field(t: float, y: np.ndarray) -> np.ndarray:
        return problem.f(torch.tensor(t, dtype=F64), torch.from_numpy(y)[None])[0].numpy()

    theirs = select_initial_step(
        numpy_field, 0.0, np.array(problem.y0), 1e3, np.inf, k[0].numpy(), 1, tableau.error_order, 1e-5, 1e-7
    )
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_starting_step_per_sample_is_that_of_each_sample_alone() -> None:
    y = torch.tensor([[1.0, 2.0], [30.0, 0.1], [0.0, 0.0]], dtype=F64)  # the last sample uses the rule for tiny states
    t = torch.zeros(3, dtype=F64)
    together = initial_step(swirl, TABLEAUS["dopri5"], t, y, swirl(t, y), 1e-3, 1e-3, per_sample=True)
    for b in range(3):
        alone = initial_step(
            swirl, TABLEAUS["dopri5"], 0.0, y[b : b + 1], swirl(t[b], y[b : b + 1]), 1e-3, 1e-3, per_sample=False
        )
        assert float(together[b]) == pytest.approx(float(alone), rel=1e-12)


@pytest.mark.parametrize(
    "field",
    [
        lambda t, y: torch.where(t > 0, torch.full_like(y, torch.nan), y),  # NaN right after the start
        lambda t, y: torch.where(t > 0, torch.full_like(y, torch.inf), y),
        lambda t, y: torch.full_like(y, 1e38),  # k / scale would overflow float32
        lambda t, y: torch.zeros_like(y),
    ],
    ids=["nan", "inf", "huge", "zero"],
)
def test_starting_step_is_a_positive_number_for_any_finite_start(field) -> None:
    """With a step of NaN or zero the loop would run into its step limit instead of ending with the right status."""
    y = torch.ones(2, 3)
    h = initial_step(field, TABLEAUS["dopri5"], 0.0, y, field(torch.tensor(0.0), y), 1e-2, 1e-2, per_sample=False)
    assert 0.0 < float(h) < math.inf


def test_loop_counts_steps_and_rejections_exactly() -> None:
    """Sizes computed by hand: 0.2 accepted, x2; 0.4 rejected, x0.45; 0.18 accepted three times, x1; the last 0.1 is clipped."""
    keep = 0.9**5
    stepper = Script([keep * 0.5**5, 32.0, keep, keep, keep, keep])
    edges, norms, status, rejected = adaptive_loop(stepper, 0.0, 0.84, 0.2, DOPRI, Tolerance())
    assert stepper.sizes == pytest.approx([0.2, 0.4, 0.18, 0.18, 0.18, 0.1], rel=1e-9)
    assert edges == pytest.approx([0.0, 0.2, 0.38, 0.56, 0.74, 0.84], rel=1e-9)
    assert norms == [keep * 0.5**5, keep, keep, keep, keep]
    assert (status, rejected) == (Status.OK, 1)


def test_loop_clips_the_last_step_to_the_end() -> None:
    stepper = Script([0.0, 0.0])
    edges, norms, status, rejected = adaptive_loop(stepper, 0.0, 3.0, 1.0, DOPRI, Tolerance())
    assert edges == [0.0, 1.0, 3.0]
    assert (norms, status, rejected) == ([0.0, 0.0], Status.OK, 0)
    assert stepper.committed == stepper.trials


def test_loop_overshoots_when_told_not_to_clip() -> None:
    """The paper's rule: the last step is not clipped, and the state at the end is interpolated."""
    stepper = Script([0.9**5] * 3)
    edges, *_ = adaptive_loop(stepper, 0.0, 3.0, 1.25, DOPRI, Tolerance(clip_last=False))
    assert edges == pytest.approx([0.0, 1.25, 2.5, 3.75], rel=1e-9)


def test_loop_leaves_no_sliver_before_the_end() -> None:
    """A remainder at rounding level (1e-10 of a step) is merged into the last step."""
    stepper = Script([0.9**5])
    edges, *_ = adaptive_loop(stepper, 0.0, 1.0, 1.0 - 1e-12, DOPRI, Tolerance())
    assert edges == [0.0, 1.0]


def test_loop_shrinks_from_the_clipped_size_after_a_rejection() -> None:
    """The rejected trial was clipped, so the next size is a fraction of the clipped size."""
    stepper = Script([1e12, 0.0, 0.0])
    adaptive_loop(stepper, 0.0, 1.0, 50.0, DOPRI, Tolerance())
    assert stepper.sizes == pytest.approx([1.0, 0.2, 0.8])


def test_loop_never_shrinks_after_an_acceptance() -> None:
    """This holds also just below the limit, where float32 would round the norm to 1 and the factor to 0.9."""
    stepper = Script([1 - 1e-9] * 4)
    adaptive_loop(stepper, 0.0, 4.0, 1.0, DOPRI, Tolerance())
    assert stepper.sizes == pytest.approx([1.0] * 4, rel=1e-12)


def test_loop_counts_trials_against_its_limit() -> None:
    """With four trials allowed and one rejected, three steps are accepted and no further trial is made."""
    stepper = Script([0.9**5, 1.0, 0.9**5, 0.9**5])
    edges, norms, status, rejected = adaptive_loop(stepper, 0.0, 100.0, 1.0, DOPRI, Tolerance(max_steps=4))
    assert status is Status.MAX_STEPS
    assert (len(edges) - 1, len(norms), rejected, len(stepper.trials)) == (3, 3, 1, 4)


@pytest.mark.parametrize(
    ("norm", "status"), [(1e9, Status.STEP_UNDERFLOW), (math.nan, Status.NON_FINITE), (math.inf, Status.NON_FINITE)]
)
def test_loop_gives_up_when_the_step_is_too_small_for_the_time(norm: float, status: Status) -> None:
    """Every trial shrinks by 0.2, from 0.1 down to 16 eps: ceil(log(0.1 / 3.6e-15) / log 5) = 20 trials."""
    stepper = Script([norm] * 100)
    edges, norms, got, rejected = adaptive_loop(stepper, 0.0, 1.0, 0.1, DOPRI, Tolerance())
    assert (got, edges, norms, rejected) == (status, [0.0], [], 20)


def test_loop_starts_with_a_step_that_moves_the_time() -> None:
    """A starting step below the resolution of t would give equal edges."""
    stepper = Script([0.0] * 30)
    edges, *_ = adaptive_loop(stepper, 1000.0, 1001.0, 1e-20, DOPRI, Tolerance())
    assert all(b > a for a, b in itertools.pairwise(edges))


def test_small_change_rule_accepts_only_when_asked_for() -> None:
    """Compatibility with the published code: a failed step whose size would change by less than the fraction is accepted."""
    stepper = Script([1.01, 0.0, 0.0])
    edges, norms, _, rejected = adaptive_loop(stepper, 0.0, 1.0, 0.5, DOPRI, Tolerance(accept_small_change=0.11))
    assert (len(edges), norms[0], rejected) == (4, 1.01, 0)
    assert stepper.trials[1] == (0.5, pytest.approx(0.5 + 0.5 * 0.9 * 1.01**-0.2))
    stepper = Script([1.01, 0.0, 0.0, 0.0])
    *_, rejected = adaptive_loop(stepper, 0.0, 1.0, 0.5, DOPRI, Tolerance())
    assert rejected == 1


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.floats(1e-3, 2.0))
def test_loop_bookkeeping_is_consistent(norms: list[float], h: float) -> None:
    """For any error norms: edges increase, each accepted step has one norm < 1, trials add up, and commits match the edges."""
    stepper = Script([*norms, *[0.0] * 40])
    edges, accepted, status, rejected = adaptive_loop(stepper, 0.0, 1.0, h, DOPRI, Tolerance())
    assert status is Status.OK
    assert edges[0] == 0.0
    assert edges[-1] == 1.0
    assert all(b > a for a, b in itertools.pairwise(edges))
    assert len(accepted) == len(edges) - 1 == len(stepper.committed)
    assert all(norm < 1 for norm in accepted)
    assert len(stepper.trials) == len(accepted) + rejected
    assert stepper.committed == list(itertools.pairwise(edges))
