"""Adaptive steps inside an exported program: a loop whose length depends on the input."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ltnode.ode.controller import Controller, initial_step
from ltnode.ode.step import Field, Step, error_norm, evaluate, take_step
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

_EPSILON = 16 * torch.finfo(torch.float64).eps
"""Smallest step relative to the end-time, as in the grid search of the library."""


class Limits(NamedTuple):
    """Tolerances of a step, and the largest number of trial steps."""

    rtol: float
    atol: float
    max_steps: int


def adaptive_states(
    field: Field, tableau: ButcherTableau, y: Float[Tensor, "B *state"], times: Float[Tensor, "S B"], limits: Limits
) -> tuple[Float[Tensor, "S B *state"], Float[Tensor, " B"]]:
    """States at the times of each sample, solved with per-sample adaptive steps in one ``while_loop``.

    The step control is that of ``odesolve(..., control="sample")``, so that a result depends on its own input only. The dense
    output is evaluated within every step, so that memory does not grow with the number of steps.

    Args:
        field: Vector field; it receives t of shape (B,).
        tableau: An adaptive method whose last stage is the field at the new state.
        y: The states at t = 0.
        times: Times of the requested states, not negative.
        limits: Tolerances, and the largest number of trial steps.

    Returns:
        The states, and the largest error norm of each sample's accepted steps (below 1), or infinity if it did not reach its end.
    """
    from torch._higher_order_ops import while_loop

    rtol, atol, max_steps = limits
    controller = Controller(tableau.error_order)
    times = times.to(torch.float64)
    t_end = times.amax(dim=0)
    smallest = _EPSILON * t_end
    t = torch.zeros_like(t_end)
    k = evaluate(field, t, y)
    h = torch.maximum(initial_step(field, tableau, t, y, k, rtol, atol, per_sample=True), smallest)
    trials = torch.zeros((), dtype=torch.int64, device=y.device)
    # Created outside the loop: a program with constants inside the loop body cannot be saved.
    dense = torch.tensor(tableau.dense, dtype=torch.float64, device=y.device).T.contiguous()

    def unfinished(t: Tensor, h: Tensor, y: Tensor, k: Tensor, states: Tensor, worst: Tensor, trials: Tensor) -> Tensor:
        # A step size of zero marks a sample that got stuck.
        return ((t < t_end) & (h > 0)).any() & (trials < max_steps)

    def one_trial(
        t: Tensor, h: Tensor, y: Tensor, k: Tensor, states: Tensor, worst: Tensor, trials: Tensor
    ) -> tuple[Tensor, ...]:
        active = (t < t_end) & (h > 0)
        remaining = t_end - t
        size = _step_size(h, remaining, active)
        step = take_step(field, tableau, t, size, y, k)
        norm = error_norm(tableau, size, y, step, rtol, atol, per_sample=True).to(torch.float64)
        accepted = (norm < 1.0) & active
        t_new = torch.where(size == remaining, t_end, t + size)
        inside = (times > t) & (times <= t_new) & accepted
        h_next = size * controller.factor(norm)
        stuck = ~accepted & (h_next < smallest)
        h_next = torch.where(active, torch.where(stuck, torch.zeros_like(h_next), h_next), h)
        return (
            torch.where(accepted, t_new, t),
            h_next,
            torch.where(_columns(accepted, y), step.y, y),
            torch.where(_columns(accepted, y), step.stages[-1], k),
            torch.where(_columns(inside, y), y + _increments(dense, times, t, size, step, states), states),
            torch.where(accepted, torch.maximum(worst, norm), worst),
            trials + 1,
        )

    # The tensors that a loop carries must not alias each other.
    start = (t, h, y.clone(), k, y.expand(times.shape[0], *y.shape).clone(), torch.zeros_like(t), trials)
    t, _, _, _, states, worst, _ = while_loop(unfinished, one_trial, start)
    unreached = torch.full_like(worst, math.inf)
    return states, torch.where(t < t_end, unreached, worst).to(torch.float32)


def _step_size(h: Tensor, remaining: Tensor, active: Tensor) -> Tensor:
    """Step sizes that end exactly at the end-time instead of just before it; 0 for samples that are done."""
    size = torch.minimum(h, remaining)
    size = torch.where(size >= remaining * (1 - 1e-10), remaining, size)
    return torch.where(active, size, torch.zeros_like(size))


def _increments(dense: Tensor, times: Tensor, t: Tensor, size: Tensor, step: Step, states: Tensor) -> Tensor:
    """Dense output of a step at the requested times, relative to the state at its beginning: (S, B, *state)."""
    theta = (times - t) / torch.where(size > 0, size, torch.ones_like(size))
    powers = torch.stack([theta**p for p in range(1, dense.shape[0] + 1)], dim=-1)
    weights = (size[:, None] * (powers @ dense)).to(states.dtype)
    stages = torch.stack(step.stages, dim=1).flatten(2)
    return torch.bmm(weights.transpose(0, 1), stages).transpose(0, 1).reshape(states.shape)


def _columns(mask: Tensor, y: Tensor) -> Tensor:
    """A mask (..., B) that broadcasts over the axes of the state."""
    return mask.reshape(*mask.shape, *[1] * (y.ndim - 1))
