"""The trajectory over known step edges, with a graph: the second phase of every solve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from ltnode.ode.dense import DenseOutput, merge_parts, times_within
from ltnode.ode.step import Field, Time, error_norm, evaluate, take_step
from ltnode.ode.tableau import ButcherTableau
from ltnode.ode.trace import Rewind
from ltnode.typing import Tensor

Edges = Sequence[float] | Tensor
"""Step edges: floats, a tensor (n+1,), or a tensor (n+1, B) with one sequence per sample."""


class Replay(NamedTuple):
    """States (S, B, ...) and error norms of the steps, (n,) or (n, B); no norms for a method without an error estimate."""

    states: Tensor
    norms: Tensor


Replayer = Callable[[Tensor, Sequence[float], Tensor], Replay]
"""``(y0, edges, times) -> Replay``: a faster `replay` of one field and method with batch-wide norms, equal up to rounding."""


def replay(
    f: Field,
    tableau: ButcherTableau,
    y: Tensor,
    edges: Edges,
    times: Tensor,
    rtol: float,
    atol: float,
    per_sample: bool = False,
    recompute: bool = False,
) -> Replay:
    """Step over the edges and return the states at the times; gradients flow through everything except the edges.

    Args:
        f: The field.
        tableau: The method.
        y: State at the first edge, (B, ...).
        edges: Step edges. Floats are the fastest in eager mode; with a tensor, a compiled or captured program serves all grids
            with the same number of steps.
        times: (S,) or (S, B), within the edges; (S, B) if the edges are per sample.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
        per_sample: Compute error norms per sample (n, B) instead of batch-wide (n,).
        recompute: Store only the state at each edge, and evaluate each step again in the backward pass.
    """
    if len(edges) < 2:
        return Replay(y.expand(times.shape[0], *y.shape), _stack_norms([], y, per_sample))
    if recompute and torch.is_grad_enabled():
        return _replay_recomputed(f, tableau, y, edges, times, rtol, atol, per_sample)
    # Chunks depend on the values of the times, which a compiled or transformed program cannot read.
    output = DenseOutput(tableau, times, chunk=None) if traced(y) or traced(times) else DenseOutput(tableau, times)
    y0, k, norms = y, None, []
    for left, right in _intervals(edges):
        step = take_step(f, tableau, left, right - left, y, k)
        if tableau.adaptive:
            norms.append(error_norm(tableau, right - left, y, step, rtol, atol, per_sample))
        output.add(left, right, y, step)
        y, k = step.y, (step.stages[-1] if tableau.fsal else None)
    return Replay(output.result(y0), _stack_norms(norms, y0, per_sample))


def _replay_recomputed(
    f: Field, tableau: ButcherTableau, y: Tensor, edges: Edges, times: Tensor, rtol: float, atol: float, per_sample: bool
) -> Replay:
    y0 = y
    norms: list[Tensor] = []
    parts: list[tuple[Tensor, Tensor]] = []

    def contexts() -> tuple[nullcontext[None], Rewind]:
        return nullcontext(), Rewind(f, y0.device)

    def one_step(
        left: Time, right: Time, y: Tensor, k: Tensor | None, rows: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        h = right - left
        step = take_step(f, tableau, left, h, y, k)
        norm = error_norm(tableau, h, y, step, rtol, atol, per_sample) if tableau.adaptive else y.new_zeros(())
        output = DenseOutput(tableau, rows)
        output.add(left, right, y, step)
        return step.y, (step.stages[-1] if tableau.fsal else None), output.result(y), norm

    k = evaluate(f, edges[0], y) if tableau.fsal else None
    for left, right in _intervals(edges):
        first = torch.as_tensor(left, dtype=torch.float64, device=times.device)
        last = torch.as_tensor(right, dtype=torch.float64, device=times.device)
        mask, rows = times_within(times, first, last, closed=not parts)
        y, k, states, norm = checkpoint(one_step, left, right, y, k, times[rows], use_reentrant=False, context_fn=contexts)
        norms.append(norm)
        parts.append((mask, states))
    return Replay(merge_parts(parts, times.shape[0], y0), _stack_norms(norms if tableau.adaptive else [], y0, per_sample))


def _intervals(edges: Edges) -> Sequence[tuple[Time, Time]]:
    return [(edges[m], edges[m + 1]) for m in range(len(edges) - 1)]


def traced(x: Tensor) -> bool:
    """Whether the values of x cannot be read: under torch.compile, export, a function transform or CUDA graph capture."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _stack_norms(norms: list[Tensor], y0: Tensor, per_sample: bool) -> Tensor:
    if norms:
        return torch.stack(norms)
    return torch.zeros((0, y0.shape[0]) if per_sample else (0,), device=y0.device)
