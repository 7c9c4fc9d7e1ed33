"""A grid stored with a trained model: predictions that depend on their own input alone.

Adaptive steps chosen by a batch norm make a state depend on its batch-mates. Here the edges are fixed beforehand, the embedded
error is checked per sample, and only the samples that fail are solved again on a finer grid.
"""

from __future__ import annotations

import itertools

import torch

from ltnode.errors import InputError
from ltnode.ode.replay import Replay, replay
from ltnode.ode.solve import Solution, check_times, odesolve
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, all_finite
from ltnode.ode.tableau import get_tableau
from ltnode.ode.training_grid import balanced_edges
from ltnode.typing import Float, Tensor

_MAX_HALVINGS = 5
_PASSING_SHARE = 0.95
"""Share of the calibration samples that must meet the tolerance on the stored grid; the others cost a second solve."""


def extend_edges(edges: list[float], t_end: float) -> list[float]:
    """The edges up to the first one at or after t_end, continued with the last step's size where they end too early.

    An edge never depends on t_end, only how many there are: so a later end-time of a batch-mate changes no sample's states.
    """
    first = next((m for m, edge in enumerate(edges) if edge >= t_end), None)
    if first is not None:
        return edges[: max(first, 1) + 1]
    step = edges[-1] - edges[-2]
    result = list(edges)
    while result[-1] < t_end:
        result.append(edges[-1] + step * (len(result) - len(edges) + 1))
    return result


def halve_edges(edges: list[float]) -> list[float]:
    """Every step cut in two."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    return sorted([*edges, *middles])


def odesolve_on_prediction_grid(
    f: Field,
    y0: Tensor,
    times: Tensor,
    edges: Float[Tensor, "n1"],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str = "dopri5",
) -> Solution:
    """Solve on stored edges; samples whose own embedded error fails are solved again with every step halved.

    Args:
        f: The field; it must treat every sample on its own (no batch statistics).
        y0: (B, ...).
        times: (S,) or (S, B), not negative; may lie beyond the stored edges, which are then continued.
        edges: Stored edges from 0.
        rtol: Relative tolerance, per sample.
        atol: Absolute tolerance, per sample.
        method: An adaptive method.

    Returns:
        The solution; ``error_norms`` is (n, B) of the first pass, ``stats.n_refreshed`` the number of halvings that were needed.
        Differentiable like `odesolve`; where some samples fail and a graph is wanted, the others are solved once more without
        them.
    """
    tableau = get_tableau(method)
    times = check_times(times, y0, 0.0)
    if not tableau.adaptive:
        raise InputError(f"a stored grid is checked by an embedded error, which method {tableau.name!r} does not have")
    if y0.ndim == 0:
        raise InputError("a stored grid is checked per sample, so y0 needs a batch: shape (B, ...)")
    if y0.shape[0] == 0:
        return odesolve(f, y0, times, rtol, atol, method, control="sample")
    own_end = times.detach().to(torch.float64).max(dim=0).values.expand(y0.shape[0])
    current = extend_edges(edges.double().tolist(), float(own_end.max()))
    first_edges, first_norms = current, None
    evaluations = halvings = 0

    def times_of(samples: Tensor) -> Tensor:
        return times if times.ndim == 1 else times[:, samples]

    def solve_again(samples: Tensor) -> Replay:
        nonlocal evaluations
        evaluations += tableau.evaluations(len(current) - 1)
        own_field = f if times.ndim == 1 else _stopping(f, current, own_end[samples], y0[samples])
        return replay(own_field, tableau, y0[samples], current, times_of(samples), rtol, atol, per_sample=True)

    done: list[tuple[Tensor, Tensor]] = []
    pending = torch.arange(y0.shape[0], device=y0.device)
    while True:
        result = solve_again(pending)
        first_norms = result.norms if first_norms is None else first_norms
        left = torch.tensor(current[:-1], dtype=torch.float64, device=y0.device)
        needed = left[:, None] < own_end[pending][None, :]
        failed = (needed & ~(result.norms < 1.0)).any(dim=0)
        if not bool(failed.any()):
            done.append((pending, result.states))
            break
        passed = pending[~failed]
        if len(passed):
            # A failed sample may have overflowed, and zero times infinity is no number: a graph must not hold it.
            again = torch.is_grad_enabled()
            done.append((passed, solve_again(passed).states if again else result.states[:, ~failed]))
        pending = pending[failed]
        if halvings == _MAX_HALVINGS:
            solved = odesolve(f, y0[pending], times_of(pending), rtol, atol, method, control="sample")
            evaluations += solved.stats.n_evaluations
            done.append((pending, solved.states))
            break
        halvings += 1
        current = halve_edges(current)
    states = _in_order(done)
    stats = Stats(len(first_edges) - 1, 0, evaluations, halvings)
    if not all_finite(states):
        raise SolverError(Status.NON_FINITE, float(own_end.max()), float(own_end.max()), stats)
    return Solution(states, Status.OK, stats, torch.tensor(first_edges, dtype=torch.float64), first_norms)


def _in_order(parts: list[tuple[Tensor, Tensor]]) -> Float[Tensor, "S B *state"]:
    """States (S, B, ...) from parts of the batch, each with the samples that it holds."""
    if len(parts) == 1:
        return parts[0][1]
    samples = torch.cat([part for part, _ in parts])
    return torch.cat([states for _, states in parts], dim=1)[:, samples.argsort()]


def _stopping(f: Field, edges: list[float], own_end: Float[Tensor, " B"], start: Float[Tensor, "B *state"]) -> Field:
    """The field, at rest for every sample from the first edge after its own end.

    Batch-mates may go on for long: a sample must not explode where nobody asks for it, since its unused stages enter the dense
    output with weight zero, and zero times infinity is no number.
    """
    grid = torch.tensor(edges, dtype=torch.float64, device=own_end.device)
    stop = grid[torch.searchsorted(grid, own_end.contiguous()).clamp_max(len(edges) - 1)]

    def stopped(t: Tensor, y: Tensor) -> Tensor:
        # An edge itself still counts; the comparison must survive the rounding of t to the state's dtype.
        moving = (t.to(torch.float64) <= stop * (1 + 1e-6)).reshape(-1, *[1] * (y.ndim - 1))
        # Evaluated at its start, a sample at rest is finite in the backward pass too.
        k = f(t, torch.where(moving, y, start))
        return torch.where(moving, k, torch.zeros_like(k))

    return stopped


@torch.no_grad()
def fit_prediction_grid(
    f: Field, y0: Tensor, t_end: float, rtol: float = 1e-2, atol: float = 1e-2, method: str = "dopri5", max_steps: int = 64
) -> Float[Tensor, "n1"]:
    """The fewest error-balanced edges of [0, t_end] on which 95 % of the samples meet the tolerance, each by its own error.

    Falls back to ``max_steps`` balanced steps when that is not reached; samples that fail a stored grid are solved again anyway.
    """
    tableau = get_tableau(method)
    nowhere = torch.zeros(1, dtype=torch.float64, device=y0.device)
    edges, n = [0.0, t_end], 1
    while True:
        norms = replay(f, tableau, y0, edges, nowhere, rtol, atol, per_sample=True).norms
        typical = norms.nan_to_num(nan=1e6, posinf=1e6).double().quantile(_PASSING_SHARE, dim=1)
        if bool((typical < 1.0).all()) or n == max_steps:
            return torch.tensor(edges, dtype=torch.float64)
        n += 1
        edges = balanced_edges(edges, typical.tolist(), n, tableau.error_order)
