"""Adaptive steps inside an exported program: a loop whose length depends on the input."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ltnode.ode.controller import Controller, initial_step
from ltnode.ode.step import Field, error_norm, evaluate, take_step
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

_EPSILON = 16 * torch.finfo(torch.float64).eps
"""Smallest step relative to the end-time, as in the library's own search."""


class Limits(NamedTuple):
    """What a step must meet, and how many trials there may be."""

    rtol: float
    atol: float
    max_steps: int


def adaptive_states(
    field: Field, tableau: ButcherTableau, y: Float[Tensor, "B *state"], times: Float[Tensor, "S B"], limits: Limits
) -> tuple[Float[Tensor, "S B *state"], Float[Tensor, " B"]]:
    """States at each sample's own times, every sample on steps of its own, as one ``while_loop``.

    The control is that of ``odesolve(..., control="sample")``: an answer depends on its own input alone. The dense output is
    taken while a step is at hand, so nothing grows with the number of steps.

    Args:
        field: Takes t of shape (B,).
        tableau: An adaptive method whose last stage is the field at the new state.
        y: The states at t = 0.
        times: Where the states are wanted, not negative.
        limits: Tolerances and the limit of trial steps.

    Returns:
        The states, and the largest error norm of a sample's accepted steps (below 1), or infinity where it did not reach its end.
    """
    from torch._higher_order_ops import while_loop

    rtol, atol, max_steps = limits
    controller = Controller(tableau.error_order)
    wanted = times.to(torch.float64)
    t_end = wanted.amax(dim=0)
    smallest = _EPSILON * t_end
    t = torch.zeros_like(t_end)
    k = evaluate(field, t, y)
    h = torch.maximum(initial_step(field, tableau, t, y, k, rtol, atol, per_sample=True), smallest)
    trials = torch.zeros((), dtype=torch.int64, device=y.device)
    # Made outside of the loop: a program cannot be saved with constants inside of its body.
    dense = torch.tensor(tableau.dense, dtype=torch.float64, device=y.device).T.contiguous()

    def per_state(mask: Tensor) -> Tensor:
        return mask.reshape(*mask.shape, *[1] * (y.ndim - 1))

    # What a loop carries must not be one tensor under two names.
    start = (t, h, y.clone(), k, y.expand(times.shape[0], *y.shape).clone(), torch.zeros_like(t), trials)

    def unfinished(
        t: Tensor, h: Tensor, y: Tensor, k: Tensor, states: Tensor, worst: Tensor, trials: Tensor
    ) -> Tensor:  # a step size of zero marks a sample that got stuck
        return ((t < t_end) & (h > 0)).any() & (trials < max_steps)

    def one_trial(
        t: Tensor, h: Tensor, y: Tensor, k: Tensor, states: Tensor, worst: Tensor, trials: Tensor
    ) -> tuple[Tensor, ...]:
        active = (t < t_end) & (h > 0)
        remaining = t_end - t
        trial = torch.minimum(h, remaining)
        trial = torch.where(trial >= remaining * (1 - 1e-10), remaining, trial)
        trial = torch.where(active, trial, torch.zeros_like(trial))
        step = take_step(field, tableau, t, trial, y, k)
        norm = error_norm(tableau, trial, y, step, rtol, atol, per_sample=True).to(torch.float64)
        accepted = (norm < 1.0) & active
        t_new = torch.where(trial == remaining, t_end, t + trial)

        theta = (wanted - t) / torch.where(trial > 0, trial, torch.ones_like(trial))
        powers = torch.stack([theta**p for p in range(1, dense.shape[0] + 1)], dim=-1)
        weights = (trial[:, None] * (powers @ dense)).to(y.dtype)
        stages = torch.stack(step.stages, dim=1).flatten(2)
        inner = torch.bmm(weights.transpose(0, 1), stages).transpose(0, 1).reshape(states.shape)
        inside = (wanted > t) & (wanted <= t_new) & accepted

        h_next = trial * controller.factor(norm)
        stuck = ~accepted & (h_next < smallest)
        h_next = torch.where(active, torch.where(stuck, torch.zeros_like(h_next), h_next), h)
        return (
            torch.where(accepted, t_new, t),
            h_next,
            torch.where(per_state(accepted), step.y, y),
            torch.where(per_state(accepted), step.stages[-1], k),
            torch.where(per_state(inside), y + inner, states),
            torch.where(accepted, torch.maximum(worst, norm), worst),
            trials + 1,
        )

    t, _, _, _, states, worst, _ = while_loop(unfinished, one_trial, start)
    unreached = torch.full_like(worst, math.inf)
    return states, torch.where(t < t_end, unreached, worst).to(torch.float32)
