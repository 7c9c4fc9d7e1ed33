"""The trajectory of the paper's field in bfloat16 on tensor cores: the launches of conv_trajectory.cu.

The kernels are written for 64 channels in 32 groups and images of at most 7 x 7, where they are several times as fast as the
Triton kernels, which serve everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.devices import Argument, CompiledModule, Defines
from ltnode.accelerate.kernels.hopper.conv_gradients import conv_gradients, planes_shape
from ltnode.accelerate.kernels.trajectory_backend import (
    BackwardResult,
    ConvolutionGradients,
    ForwardResult,
    Pair,
    Problem,
    torch_gradients,
)
from ltnode.device import Precision
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

_CHANNELS, _GROUPS, _LARGEST_SIDE = 64, 32, 7
THREADS_PER_SAMPLE, SAMPLES_PER_BLOCK = 128, 2
WEIGHT_BYTES = 2 * 9 * _CHANNELS * _CHANNELS * 2
"""Size of the packed weights of both convolutions for one direction."""


def unsupported_reason(y0: Tensor, groups: int, precision: Precision) -> str | None:
    """Return why the kernels cannot compute a trajectory from y0 (B, C, H, W), or None."""
    if precision != "bf16":
        return f"the kernels compute in bf16, not in {precision}"
    if y0.shape[1] != _CHANNELS or groups != _GROUPS:
        return f"the kernels need {_CHANNELS} channels in {_GROUPS} groups, not {y0.shape[1]} in {groups}"
    if y0.shape[2] != y0.shape[3] or y0.shape[2] > _LARGEST_SIDE:
        return f"images must be squares of at most {_LARGEST_SIDE} rows, not {y0.shape[2]} x {y0.shape[3]}"
    reason = devices.unsupported_reason(y0.device)
    return reason or devices.unsupported_reason(y0.device, shared_bytes=_shared_bytes(y0.shape[2], y0.device))


def _shared_bytes(side: int, device: torch.device) -> int:
    """Shared memory of a block: weights; planes and a tile of each sample; time maps (forward) or slots (backward)."""
    lines = 3 * 9 + 2 * 8 * side if devices.has_warpgroup_mma(device) else 2 * 64
    planes, tile = lines * 128, side * THREADS_PER_SAMPLE * 16
    rest = max(2 * 3 * THREADS_PER_SAMPLE * 16, SAMPLES_PER_BLOCK * tile // 2)
    return WEIGHT_BYTES + SAMPLES_PER_BLOCK * (planes + tile) + rest


def _compiled(problem: Problem, side: int, device: torch.device) -> CompiledModule:
    defines: Defines = (("SIDE", side), ("STAGES", problem.tableau.stages), ("SAVE", int(problem.save)))
    return devices.compiled("conv_trajectory", (*defines, ("WARPGROUPS", int(devices.has_warpgroup_mma(device)))), device)


@dataclass(frozen=True)
class CudaTrajectory:
    """`TrajectoryBackend` on tensor cores, by warpgroups where the device has wgmma."""

    def forward(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> ForwardResult:
        """See `TrajectoryBackend.forward`."""
        w1, w2, bias1, bias2, map1, map2, g1, g2, g3, b1, b2, b3 = field
        batch, side, _, channels = y0.shape
        steps, device = lengths.shape[0], y0.device
        module, evaluations = _compiled(problem, side, device), problem.evaluations(steps)
        stages = torch.empty((evaluations, batch, side, side, channels), device=device)
        active1, active2 = _convolution_tensors(evaluations if problem.save else 0, batch, side, device)
        normals_shape = (3, evaluations, batch, side, THREADS_PER_SAMPLE, 2) if problem.save else (0,)
        normals = torch.empty(normals_shape, device=device, dtype=torch.int32)
        rstds = torch.empty((evaluations, batch, 3, channels // 2) if problem.save else (0,), device=device)
        squares = torch.empty(steps, batch, 4, device=device)
        packed = torch.empty((2, WEIGHT_BYTES), device=device, dtype=torch.uint8)
        w1, w2 = _with_adjacent_taps(w1, w2)
        maps = torch.empty((2, 3, THREADS_PER_SAMPLE, 4), device=device)
        arguments: list[Argument] = [w1, w2, w1.stride(0), w1.stride(1), map1.contiguous(), map2.contiguous(), packed, maps]
        module.launch("pack_weights", -(-packed.numel() // 4 // 256), 256, 0, arguments)
        norms = torch.stack([g1, b1, g2, b2, g3, b3])
        arguments = [y0, starts, lengths, steps, _coefficients(problem.tableau), packed[0], bias1, bias2, maps, norms]
        arguments += [stages, active1, active2, normals, rstds, squares, batch, float(problem.rtol), float(problem.atol)]
        _launch(module, "forward", batch, side, device, arguments)
        return ForwardResult(stages, squares.sum(dim=2), (active1, active2), (packed, norms, normals, rstds))

    def backward(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> BackwardResult:
        """See `TrajectoryBackend.backward`."""
        packed, norms, normals, rstds = saved
        evaluations, batch, side, _, channels = d_stages.shape
        device, n_stages = d_stages.device, problem.tableau.stages
        d_conv1, d_conv2 = _convolution_tensors(evaluations, batch, side, device)
        d_arguments = torch.empty((n_stages, batch, side, THREADS_PER_SAMPLE, 4), device=device)
        d_y0 = torch.empty(d_stages.shape[1:], device=device)
        d_norms = torch.empty((batch, 6, channels), device=device)
        method = _coefficients(problem.tableau)
        arguments: list[Argument] = [d_stages, lengths, lengths.shape[0], method, packed[1], norms, normals, rstds]
        arguments += [d_conv1, d_conv2, d_arguments, d_y0, d_norms, batch]
        _launch(_compiled(problem, side, device), "backward", batch, side, device, arguments)
        return BackwardResult(d_y0, (d_conv1, d_conv2), d_norms)

    def convolution_gradients(self, active: Pair, d_conv: Pair, weights: Pair, times: Tensor) -> ConvolutionGradients:
        """See `TrajectoryBackend.convolution_gradients`."""
        if devices.has_warpgroup_mma(times.device):
            return conv_gradients(active, d_conv, times)
        return torch_gradients(active, d_conv, weights, times)


def _convolution_tensors(evaluations: int, batch: int, side: int, device: torch.device) -> Pair:
    """Allocate inputs or output gradients of both convolutions, in the layout of `conv_gradients` or `torch_gradients`."""
    whole = (evaluations, batch, side, side, _CHANNELS)
    shape = planes_shape(evaluations, batch, side) if devices.has_warpgroup_mma(device) else whole
    first, second = (torch.empty(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    return first, second


def _launch(module: CompiledModule, name: str, batch: int, side: int, device: torch.device, arguments: list[Argument]) -> None:
    """Launch a pass with one block per multiprocessor, which loops over pairs of samples and loads the weights once."""
    blocks = devices.even_blocks(-(-batch // SAMPLES_PER_BLOCK), devices.multiprocessors(device))
    module.launch(name, blocks, SAMPLES_PER_BLOCK * THREADS_PER_SAMPLE, _shared_bytes(side, device), arguments, long=True)


def _coefficients(tableau: ButcherTableau) -> tuple[float, ...]:
    """Return the rows of `Coefficients` in conv_tile.cuh; the error row is zero for a method without an estimate."""
    n = tableau.stages
    rows = [(*row, *(0.0,) * (n - len(row))) for row in tableau.a]
    return tuple(value for row in (*rows, tableau.error or (0.0,) * n, tableau.c) for value in row)


def _with_adjacent_taps(w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """Return two (out, in, 3, 3) weights with equal strides and adjacent taps; slices of the layers' weights already are."""
    if w1.stride() == w2.stride() and w1.stride()[2:] == (3, 1):
        return w1, w2
    return w1.contiguous(), w2.contiguous()
