"""One explicit Runge-Kutta step, and the norm of its embedded error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

Field = Callable[[Tensor, Tensor], Tensor]
"""``f(t, y) -> dy/dt``; t is 0-dim, or (B,) under per-sample step control."""

Time = float | Tensor
"""A point in time or a step size: a float, a 0-dim tensor, or one value per sample (B,)."""


class Step(NamedTuple):
    """A trial step: the new state and the stages."""

    y: Tensor
    stages: tuple[Tensor, ...]


def time_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the time argument of a field: the dtype of the state, but at least float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def time_on(y: Tensor, t: Time) -> Tensor:
    """The time as a tensor on the device of the state. A float is filled in on the device, because a copy would synchronise."""
    if isinstance(t, torch.Tensor):
        return t.to(dtype=time_dtype(y.dtype), device=y.device)
    return torch.full((), t, dtype=time_dtype(y.dtype), device=y.device)


def evaluate(f: Field, t: Time, y: Tensor) -> Tensor:
    """Evaluate the field at (t, y), check the shape of the result, and cast it to the dtype of the state."""
    k = f(time_on(y, t), y)
    if not isinstance(k, torch.Tensor) or k.shape != y.shape:
        returned = tuple(k.shape) if isinstance(k, torch.Tensor) else type(k).__name__
        raise InputError(f"the field returned {returned} for a state of shape {tuple(y.shape)}; dy/dt must have the shape of y")
    return k if k.dtype == y.dtype else k.to(y.dtype)


def add_stages(y: Tensor, h: Time, weights: Sequence[float], stages: Sequence[Tensor]) -> Tensor:
    """``y + h sum_i weights_i stages_i``, skipping zero weights."""
    terms = [(w, k) for w, k in zip(weights, stages, strict=False) if w != 0.0]
    if not isinstance(h, torch.Tensor):
        for w, k in terms:
            y = torch.add(y, k, alpha=h * w)
        return y
    return y + (expand_like(h, y) * weighted_sum(terms)).to(y.dtype) if terms else y


def weighted_sum(terms: Sequence[tuple[float, Tensor]]) -> Tensor:
    """``sum_i w_i k_i`` with constant weights."""
    (w, k), *rest = terms
    total = k * w
    for w, k in rest:
        total = torch.add(total, k, alpha=w)
    return total


def expand_like(h: Tensor, y: Tensor) -> Tensor:
    """Reshape a 0-dim or per-sample (B,) time so that it broadcasts with the state."""
    h = h.to(device=y.device, dtype=time_dtype(y.dtype))
    return h if h.ndim == 0 else h.reshape(-1, *[1] * (y.ndim - 1))


def take_step(f: Field, tableau: ButcherTableau, t: Time, h: Time, y: Tensor, k_first: Tensor | None) -> Step:
    """Take one step of size h from (t, y); ``k_first`` is f(t, y) if it is known already (FSAL)."""
    stages = [evaluate(f, t, y) if k_first is None else k_first]
    y_new = y
    for c, row in zip(tableau.c[1:], tableau.a[1:], strict=True):
        y_new = add_stages(y, h, row, stages)
        stages.append(evaluate(f, t + c * h, y_new))
    if not tableau.fsal:
        y_new = add_stages(y, h, tableau.b, stages)
    return Step(y_new, tuple(stages))


def error_norm(tableau: ButcherTableau, h: Time, y: Tensor, step: Step, rtol: float, atol: float, per_sample: bool) -> Tensor:
    """RMS of ``error / (atol + rtol max(|y|, |y_new|))`` over the whole batch (0-dim) or per sample (B,), without a graph.

    The step meets the tolerance if the norm is below 1.
    """
    if tableau.error is None:
        raise InputError(f"method {tableau.name!r} has no embedded error estimate")
    with torch.no_grad():
        terms = [(w, k.detach()) for w, k in zip(tableau.error, step.stages, strict=True) if w != 0.0]
        total = weighted_sum(terms)
        error = total * h if not isinstance(h, torch.Tensor) else total * expand_like(h, y)
        scale = torch.maximum(y.detach().abs(), step.y.detach().abs()).mul_(rtol).add_(atol)
        ratio = error.div_(scale)
        # math.sqrt would not accept the symbolic batch size of an exported program.
        if per_sample:
            flat = ratio.reshape(ratio.shape[0], -1)
            return torch.linalg.vector_norm(flat, dim=1, dtype=time_dtype(y.dtype)) / max(flat.shape[1], 1) ** 0.5
        return torch.linalg.vector_norm(ratio, dtype=time_dtype(y.dtype)) / max(ratio.numel(), 1) ** 0.5


def all_finite(x: Tensor) -> bool:
    """Whether x contains neither NaN nor infinity."""
    # The sum needs a single pass and overflows only for huge values; only then is the slower element-wise test needed.
    x = x.detach()
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())
