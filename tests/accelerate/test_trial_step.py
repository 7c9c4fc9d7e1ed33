"""Recorded trial steps of adaptive predictions: on a CPU with a graph that runs its pass again, and on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_graphs import RunsAgain
from kernels.comparisons import rough_field

from ltnode.accelerate import trial_step as captured_trial
from ltnode.accelerate.trial_step import CapturedTrial
from ltnode.models import build, execution
from ltnode.models.options import SolverOptions
from ltnode.ode import odesolve
from ltnode.ode.step import error_norm, evaluate, take_step
from ltnode.ode.tableau import get_tableau

DOPRI5 = get_tableau("dopri5")


def emulated(run: Any) -> tuple[Any, Any]:
    outputs = run()
    return RunsAgain(run, outputs), outputs


def trial_on_cpu(y: torch.Tensor, rtol: float = 1e-2) -> tuple[Any, CapturedTrial]:
    field = rough_field(8, seed=1)
    return field, CapturedTrial(field, DOPRI5, y, rtol, rtol, emulated)


@torch.no_grad()
def test_a_recorded_step_is_the_step():
    """State, stages and norm of two steps in a row; the step size is a tensor there and a number here: float32 rounding."""
    y = torch.randn(3, 8, 5, 5)
    field, trial = trial_on_cpu(torch.zeros_like(y))
    first = evaluate(field, 0.2, y)
    step, norm = trial(0.2, 0.9, y, first)
    second, _ = trial(0.9, 1.1, step.y, step.stages[-1])
    wanted = take_step(field, DOPRI5, 0.2, 0.7, y, first)
    torch.testing.assert_close(step.y, wanted.y, rtol=1e-5, atol=1e-5)
    for a, b in zip(step.stages, wanted.stages, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert norm == pytest.approx(float(error_norm(DOPRI5, 0.7, y, wanted, 1e-2, 1e-2, per_sample=False)), rel=1e-3)
    follows = take_step(field, DOPRI5, 0.9, 0.2, wanted.y, wanted.stages[-1])
    torch.testing.assert_close(second.y, follows.y, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_solve_with_recorded_steps_is_the_solve():
    """Rejections, the clipped last step and the dense output included: the same accepted steps, states to rounding."""
    y = 3 * torch.randn(2, 8, 5, 5)
    times = torch.tensor([0.4, 1.7, 3.0])
    field, trial = trial_on_cpu(y, rtol=1e-4)
    plain = odesolve(field, y, times, 1e-4, 1e-4)
    recorded = odesolve(field, y, times, 1e-4, 1e-4, trial_step=trial)
    assert recorded.stats == plain.stats
    torch.testing.assert_close(recorded.grid, plain.grid, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded.states, plain.states, rtol=1e-3, atol=1e-3)


def test_nothing_is_recorded_without_cuda():
    """On a CPU launches cost little."""
    with torch.no_grad():
        for _ in range(4):
            assert captured_trial.captured_trial(rough_field(8, seed=1), torch.zeros(1, 8, 4, 4), SolverOptions()) is None


@pytest.mark.gpu
def test_predictions_with_recorded_steps_on_cuda():
    """From the third batch on steps are recorded; the same predictions as without, and they follow a change of the weights."""
    model = build("lt-node", "cifar10", "paper", seed=0).to("cuda").eval()
    model.field = rough_field(64, seed=2).to("cuda")
    model.solver = SolverOptions(rtol=1e-3, atol=1e-3)
    x = torch.randn(6, 64, 3, 32, 32, device="cuda")

    def predicted() -> list[Any]:
        return [model.predict(part, samples=5, steps="adaptive") for part in x]

    with execution.using(execution.REFERENCE):
        plain = predicted()
    for _ in range(2):
        for a, b in zip(predicted(), plain, strict=True):
            assert a.stats == b.stats
            torch.testing.assert_close(a.probs, b.probs, rtol=1e-3, atol=1e-4)
        kinds = captured_trial._seen[model.field]
        assert any(isinstance(kind, CapturedTrial) for kind in kinds.values())
        with torch.no_grad(), execution.using(execution.REFERENCE):
            model.field.norm3.weight.mul_(1.5)
            plain = predicted()
