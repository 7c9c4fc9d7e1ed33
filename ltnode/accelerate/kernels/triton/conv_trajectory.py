"""The trajectory of the convolutional field in Triton: the launches of trajectory_kernels.py.

It serves every precision, widths that are powers of two from 32 on, and images of up to 64 positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ltnode.accelerate.kernels.trajectory_backend import BackwardResult, ForwardResult, Problem, torch_gradients
from ltnode.accelerate.kernels.triton.trajectory_kernels import backward_kernel, forward_kernel
from ltnode.device import Precision
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

_EPS = 1e-5


@dataclass(frozen=True)
class TritonTrajectory:
    """`TrajectoryBackend` with one program per sample."""

    def forward(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> ForwardResult:
        """See `TrajectoryBackend.forward`."""
        w1, w2, bias1, bias2, map1, map2, g1, g2, g3, b1, b2, b3 = field
        batch, side, _, channels = y0.shape
        steps, device, dtype = lengths.shape[0], y0.device, _storage(problem.precision)
        evaluations = problem.evaluations(steps)
        cells = (evaluations if problem.save else 1, batch, side, side, channels)
        stages = torch.empty((evaluations, *cells[1:]), device=device)
        states = torch.empty((steps + 1, *cells[1:]), device=device)
        states[0].copy_(y0)
        active1, active2 = (torch.empty(cells, device=device, dtype=dtype) for _ in range(2))
        normal = [torch.empty(cells if problem.save else (1,), device=device, dtype=dtype) for _ in range(3)]
        rstd = [torch.empty((cells[0], batch, channels) if problem.save else (1,), device=device) for _ in range(3)]
        squares = torch.empty(steps, batch, device=device)
        maps = (map1.permute(1, 2, 0).contiguous(), map2.permute(1, 2, 0).contiguous())
        inputs = (states, starts, lengths, steps, *_tables(problem.tableau, device))
        parameters = (_taps(w1, dtype), _taps(w2, dtype), bias1, bias2, *maps, g1, b1, g2, b2, g3, b3)
        outputs = (stages, active1, active2, *normal, *rstd, squares)
        constants = _constants(problem, side, channels)
        forward_kernel[(batch,)](
            *inputs, *parameters, *outputs, batch, problem.rtol, problem.atol, _EPS, **constants, SAVE=problem.save
        )
        return ForwardResult(stages, squares, (active1, active2), (*normal, *rstd))

    def backward(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> BackwardResult:
        """See `TrajectoryBackend.backward`."""
        w1, w2, _, _, _, _, g1, g2, g3, b1, b2, _ = field
        _, batch, side, _, channels = d_stages.shape
        device, dtype = d_stages.device, _storage(problem.precision)
        d_conv1, d_conv2 = torch.empty_like(saved[0]), torch.empty_like(saved[0])
        d_argument = torch.empty((problem.tableau.stages, batch, side, side, channels), device=device)
        d_state, carried = torch.zeros((2, batch, side, side, channels), device=device)
        d_norms = torch.empty((batch, 6, channels), device=device)
        inputs = (d_stages, d_state, carried, lengths, lengths.shape[0], _tables(problem.tableau, device)[0])
        parameters = (_taps(w1, dtype, transposed=True), _taps(w2, dtype, transposed=True), g1, b1, g2, b2, g3)
        outputs = (d_conv1, d_conv2, d_argument, d_norms)
        constants = _constants(problem, side, channels)
        backward_kernel[(batch,)](*inputs, *parameters, *saved, *outputs, batch, **constants)
        return BackwardResult(d_state, (d_conv1, d_conv2), d_norms)

    convolution_gradients = staticmethod(torch_gradients)


def _constants(problem: Problem, side: int, channels: int) -> dict[str, Any]:
    """Compile-time constants of the kernels."""
    return {
        "SIDE": side,
        "TILE": max(16, 1 << (side * side - 1).bit_length()),
        "CHANNELS": channels,
        "GROUPS": problem.groups,
        "N_STAGES": problem.tableau.stages,
        "PRECISION": "ieee" if problem.precision == "fp32" else "tf32",
        "num_warps": 4,
    }


def _storage(precision: Precision) -> torch.dtype:
    """Type in which the inputs of the convolutions are stored."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _taps(weight: Tensor, dtype: torch.dtype, transposed: bool = False) -> Tensor:
    """Return (out, in, 3, 3) weights as (9, in, out), or (9, out, in) if transposed."""
    order = (2, 3, 0, 1) if transposed else (2, 3, 1, 0)
    return weight.permute(order).reshape(9, weight.shape[0], weight.shape[1]).to(dtype).contiguous()


@cache  # a captured program must not copy from the host
def _tables(tableau: ButcherTableau, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients a (square), c and error (zero without an estimate) on the device."""
    n = tableau.stages
    a = torch.zeros(n, n)
    for i, row in enumerate(tableau.a):
        a[i, : len(row)] = torch.tensor(row)
    return a.to(device), torch.tensor(tableau.c).to(device), torch.tensor(tableau.error or (0.0,) * n).to(device)
