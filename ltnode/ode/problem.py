"""An initial value problem with everything that determines its solution, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from ltnode.errors import InputError
from ltnode.ode.replay import Edges, Replay, replay, traced
from ltnode.ode.search import Tolerance
from ltnode.ode.step import Field
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor


@dataclass(frozen=True)
class Problem:
    """The initial value problem ``dy/dt = f(t, y)``, ``y(t0) = y0``, and how to solve it; see `odesolve` for its parts.

    With ``per_sample``, each sample has its own error norms, and its own steps where they are adaptive.
    """

    f: Field
    y0: Tensor
    times: Tensor
    t0: float
    tableau: ButcherTableau
    tolerance: Tolerance
    per_sample: bool = False
    recompute: bool = False
    throw: bool = True

    @cached_property
    def t_end(self) -> float:
        """The largest requested time."""
        return float(self.times.detach().max())

    def replay(self, edges: Edges) -> Replay:
        """Step over the given edges, with a graph in grad mode."""
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        return replay(self.f, self.tableau, self.y0, edges, self.times, rtol, atol, self.per_sample, self.recompute)


def check_times(times: Tensor | Sequence[float], y0: Tensor, t0: float) -> Tensor:
    """Check the times against y0, and return them as a tensor of shape (S,) or (S, B) on the device of y0."""
    if not isinstance(y0, torch.Tensor) or not y0.is_floating_point():
        kind = y0.dtype if isinstance(y0, torch.Tensor) else type(y0).__name__
        raise InputError(f"y0 must be a floating-point tensor, not {kind}; convert it, for example with y0.float()")
    if not isinstance(times, torch.Tensor):
        times = torch.as_tensor(times, dtype=torch.float64)
    if not times.is_floating_point():
        times = times.to(torch.float64)
    times = times.to(y0.device)
    if times.ndim not in (1, 2) or times.shape[0] == 0:
        raise InputError(f"times must have shape (S,) or (S, B) with S >= 1, not {tuple(times.shape)}")
    if times.ndim == 2 and (y0.ndim == 0 or times.shape[1] != y0.shape[0]):
        raise InputError(f"times of shape {tuple(times.shape)} need y0 with a batch of {times.shape[1]}, not {tuple(y0.shape)}")
    if traced(times):
        return times
    values = times.detach()
    if not bool(torch.isfinite(values).all()):
        raise InputError("times must be finite, but they contain NaN or inf")
    if bool((values < t0).any()):
        raise InputError(f"times must not be smaller than t0 = {t0}; the smallest is {float(values.min()):.6g}")
    return times


def check_grid(grid: Tensor | Sequence[float], times: Tensor, t0: float, y0: Tensor) -> Edges:
    """Check a fixed grid; return floats where its values may be read, else the tensor (when traced, or on a GPU)."""
    if not isinstance(grid, torch.Tensor) and traced(times):
        return list(grid)
    edges = torch.as_tensor(grid, dtype=torch.float64).detach()
    if edges.ndim not in (1, 2) or edges.shape[0] < 2:
        raise InputError(f"grid must have at least two edges, (n+1,) or (n+1, B), not shape {tuple(edges.shape)}")
    if edges.ndim == 2 and (y0.ndim == 0 or edges.shape[1] != y0.shape[0]):
        raise InputError(f"a grid of shape {tuple(edges.shape)} needs y0 with a batch of {edges.shape[1]}, not {tuple(y0.shape)}")
    if traced(edges) or traced(times) or edges.device.type != "cpu":
        return edges
    edges, steps = edges.clone(), edges.diff(dim=0)
    if not bool((steps > 0).all() if edges.ndim == 1 else (steps >= 0).all()):
        raise InputError("grid edges must increase, strictly for shape (n+1,), weakly for (n+1, B), and must not be NaN")
    if not bool((edges[0] == t0).all()):
        raise InputError(f"grid must start at t0 = {t0}, not at {float(edges[0].min()):.6g}")
    latest = times.detach().to(device="cpu", dtype=torch.float64).max(dim=0).values
    if edges.ndim == 1:
        latest = latest.max()
    if bool((latest > edges[-1] + 1e-9 * edges[-1].abs()).any()):
        raise InputError(
            f"the largest time {float(latest.max()):.6g} lies beyond the end of the grid, {float(edges[-1].min()):.6g}; "
            "add edges up to that time"
        )
    edges[-1] = torch.maximum(edges[-1], latest)  # a time that exceeds the end by rounding belongs to the last step
    return edges.tolist() if edges.ndim == 1 else edges


def check_adaptive(problem: Problem) -> None:
    """Require a method with an error estimate and values that the step-size control can read."""
    if not problem.tableau.adaptive:
        raise InputError(
            f"method {problem.tableau.name!r} has no error estimate and cannot choose its steps: pass "
            "grid=[t0, ..., t_end], or use 'dopri5', 'tsit5' or 'bosh3'"
        )
    if _hidden_by_vmap(problem.y0) or _hidden_by_vmap(problem.times):
        raise InputError(
            "adaptive steps need values that torch.func.vmap hides: give grid=[t0, ..., t_end] to use a fixed grid instead"
        )


def check_per_sample(problem: Problem) -> None:
    """Require a batch of independent samples and the options that per-sample control supports."""
    if problem.y0.ndim == 0:
        raise InputError("per-sample step control needs a batch: y0 must have shape (B, ...)")
    if not problem.tolerance.clip_last or problem.tolerance.accept_small_change:
        raise InputError("per-sample step control supports only clip_last=True and accept_small_change=0")
    f = problem.f
    root = f if isinstance(f, nn.Module) else getattr(f, "__self__", None)  # the module itself, or a method of one
    if isinstance(root, nn.Module):
        for name, module in root.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                raise InputError(
                    f"per-sample step control does not support BatchNorm in train mode ({name or 'the field'}), because batch "
                    "statistics couple the samples; use control='batch', LayerNorm or GroupNorm"
                )


def _hidden_by_vmap(x: Tensor) -> bool:
    """Whether torch.func.vmap hides the values of x, possibly inside other transforms."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False
