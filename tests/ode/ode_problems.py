"""Fields, reference solutions and plain reference implementations shared by the solver tests."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from ltnode.ode import ButcherTableau

F64 = torch.float64
ADAPTIVE = ("dopri5", "tsit5", "bosh3")
METHODS = (*ADAPTIVE, "rk4", "euler")


class Counted:
    """A field that counts its calls, independently of the solver."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.f, self.calls = f, 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return self.f(t, y)


def per_sample_time(t: Tensor, y: Tensor) -> Tensor:
    """Reshape a 0-dim or (B,) time so that it broadcasts with a state of any shape."""
    return t if t.ndim == 0 else t.reshape(-1, *[1] * (y.ndim - 1))


def swirl(t: Tensor, y: Tensor) -> Tensor:
    """A smooth, nonlinear, time-dependent, element-wise field: samples are independent problems."""
    return torch.sin(y + per_sample_time(t, y)) - 0.1 * y**3


def stiffness(rate: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Decay towards a moving target; a larger rate needs more steps."""
    return lambda t, y: -rate * (y - torch.cos(per_sample_time(t, y)))


class MLPField(nn.Module):
    """A small network that takes the time as an input, optionally with BatchNorm, whose statistics change in train mode."""

    def __init__(self, dim: int = 3, width: int = 8, batch_norm: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Linear(dim + 1, width)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.last = nn.Linear(width, dim)
        self.gain = gain

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        column = per_sample_time(t, y).expand(y.shape[0], 1).to(y.dtype)
        return self.gain * self.last(torch.tanh(self.norm(self.first(torch.cat([column, y], dim=1)))))


@dataclass(frozen=True)
class Problem:
    """A test problem of Hull, Enright, Fellen, Sedgwick, Comparing numerical methods for ODEs, SIAM J. Numer. Anal. 9 (1972)."""

    name: str
    f: Callable[[Tensor, Tensor], Tensor]
    y0: tuple[float, ...]
    t_end: float = 10.0

    @functools.cache  # noqa: B019  (a handful of module-level problems)
    def reference(self, times: tuple[float, ...]) -> np.ndarray:
        """Solution (S, n) by scipy's DOP853, whose error at this tolerance is negligible in the tests."""

        def numpy_field(t: float, y: np.ndarray) -> np.ndarray:
            return self.f(torch.tensor(t, dtype=F64), torch.from_numpy(y)[None])[0].numpy()

        return solve_ivp(numpy_field, (0.0, self.t_end), self.y0, method="DOP853", t_eval=times, rtol=1e-13, atol=1e-13).y.T


def _stack(*columns: Tensor) -> Tensor:
    return torch.stack(columns, dim=-1)


def _b4(t: Tensor, y: Tensor) -> Tensor:
    a, b, c = y.unbind(-1)
    r = torch.sqrt(a * a + b * b)
    return _stack(-b - a * c / r, a - b * c / r, a / r)


def _c1(t: Tensor, y: Tensor) -> Tensor:
    decay = torch.cat([-y[..., :9], torch.zeros_like(y[..., :1])], dim=-1)
    return decay + torch.cat([torch.zeros_like(y[..., :1]), y[..., :9]], dim=-1)


def _d1(t: Tensor, y: Tensor) -> Tensor:
    a, b, va, vb = y.unbind(-1)
    r3 = (a * a + b * b) ** 1.5
    return _stack(va, vb, -a / r3, -b / r3)


DETEST = (
    Problem("A1", lambda t, y: -y, (1.0,)),
    Problem("A2", lambda t, y: -0.5 * y**3, (1.0,)),
    Problem("A3", lambda t, y: y * torch.cos(t), (1.0,)),
    Problem("A4", lambda t, y: 0.25 * y * (1 - y / 20), (1.0,)),
    Problem("A5", lambda t, y: (y - t) / (y + t), (4.0,)),
    Problem("B1", lambda t, y: _stack(2 * (y[..., 0] - y[..., 0] * y[..., 1]), y[..., 0] * y[..., 1] - y[..., 1]), (1.0, 3.0)),
    Problem("B4", _b4, (3.0, 0.0, 0.0)),
    Problem("C1", _c1, (1.0, *[0.0] * 9)),
    Problem("D1", _d1, (0.9, 0.0, 0.0, math.sqrt(1.1 / 0.9))),
    Problem("E2", lambda t, y: _stack(y[..., 1], (1 - y[..., 0] ** 2) * y[..., 1] - y[..., 0]), (2.0, 0.0)),
)


def rk_oracle(
    f: Callable[[Tensor, Tensor], Tensor], tableau: ButcherTableau, y: Tensor, edges: Sequence[float], times: Tensor
) -> Tensor:
    """A plain Runge-Kutta loop with plain autograd and without chunks or FSAL.

    Each time is interpolated from the state at the left edge of its step, whereas the solver sums all stages from the start.
    """
    rows: list[list[Tensor | None]] = [[None] * (times.shape[1] if times.ndim == 2 else 1) for _ in times]
    for m, (left, right) in enumerate(itertools.pairwise(edges)):
        h = right - left
        stages: list[Tensor] = []
        for c, row in zip(tableau.c, tableau.a, strict=True):
            inner = y + h * sum((a * k for a, k in zip(row, stages, strict=True)), torch.zeros_like(y))
            stages.append(f(torch.tensor(left + c * h, dtype=y.dtype), inner))
        for s in range(times.shape[0]):
            for b in range(len(rows[s])):
                time = times[s, b] if times.ndim == 2 else times[s]
                if not (left < time.item() <= right or (m == 0 and time.item() == left)):
                    continue
                theta = (time - left) / h
                state = y[b] if times.ndim == 2 else y
                for k, row in zip(stages, tableau.dense, strict=True):
                    weight = sum(d * theta ** (p + 1) for p, d in enumerate(row))
                    state = state + h * weight * (k[b] if times.ndim == 2 else k)
                rows[s][b] = state
        y = y + h * sum((b * k for b, k in zip(tableau.b, stages, strict=True)), torch.zeros_like(y))
    if times.ndim == 1:
        return torch.stack([row[0] for row in rows])
    return torch.stack([torch.stack(row) for row in rows])
