"""Launches of conv_trajectory.cu: the trajectory in bfloat16 on the tensor cores, for the paper's field.

It is written for 64 channels in 32 groups and images of at most 7 x 7, where it is several times as fast as the kernels in
Triton; everything else goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.conv_trajectory import (
    ConvolutionGradients,
    Pair,
    Precision,
    Problem,
    Swept,
    SweptBack,
    torch_gradients,
)
from ltnode.accelerate.kernels.hopper.conv_gradients import conv_gradients, planes_shape
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

_CHANNELS, _GROUPS, _LARGEST_SIDE = 64, 32, 7
_THREADS = 128
"""Of one sample."""
_SAMPLES = 2
"""Of a block."""
_KERNEL_BYTES = 2 * 9 * _CHANNELS * _CHANNELS * 2
"""Of the two convolutions in one direction."""


def why_not(y0: Tensor, groups: int, tableau: ButcherTableau, precision: Precision) -> str | None:
    """Why these kernels cannot serve; None where they can."""
    if precision != "bf16":
        return f"they compute in bf16, not in {precision}"
    if y0.shape[1] != _CHANNELS or groups != _GROUPS:
        return f"they have {_CHANNELS} channels in {_GROUPS} groups, not {y0.shape[1]} in {groups}"
    if y0.shape[2] != y0.shape[3] or y0.shape[2] > _LARGEST_SIDE:
        return f"images must be squares of at most {_LARGEST_SIDE} rows, not {y0.shape[2]} x {y0.shape[3]}"
    if y0.device.type != "cuda":
        return f"the state is on {y0.device.type}"
    card: Any = torch.cuda.get_device_properties(y0.device)
    if card.shared_memory_per_block_optin < shared_bytes(y0.shape[2], has_warpgroups(y0.device)):
        return "the card has too little shared memory"
    return nvrtc.why_unavailable()


def has_warpgroups(device: torch.device) -> bool:
    """Whether the card's warpgroups multiply matrices (conv_product_group.cuh), or only its warps (conv_product_warp.cuh)."""
    return torch.cuda.get_device_capability(device) == nvrtc.HOPPER


def shared_bytes(side: int, warpgroups: bool) -> int:
    """Of a block: kernels; activations and a tile of each sample; time maps forward, a slot for each sample backward."""
    lines = 3 * 9 + 2 * 8 * side if warpgroups else 2 * 64
    activations, tile = lines * 128, side * _THREADS * 16
    rest = max(2 * 3 * _THREADS * 16, _SAMPLES * tile // 2)
    return _KERNEL_BYTES + _SAMPLES * (activations + tile) + rest


def defines(problem: Problem, side: int, warpgroups: bool) -> tuple[tuple[str, int], ...]:
    """What the kernels are compiled for."""
    sizes = (("SIDE", side), ("STAGES", problem.tableau.stages), ("SAVE", int(problem.save)))
    return (*sizes, ("WARPGROUPS", int(warpgroups)))


def _compiled_for(problem: Problem, side: int, warpgroups: bool, device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("conv_trajectory", defines(problem, side, warpgroups), device)


@dataclass(frozen=True)
class CudaTrajectory:
    """`ltnode.accelerate.kernels.conv_trajectory.Kernels` on the tensor cores.

    Attributes:
        warpgroups: Multiply as warpgroups; see `has_warpgroups`.
        compiled: Gives the compiled functions for a problem; the tests put an emulation in its place.
    """

    warpgroups: bool
    compiled: Callable[[Problem, int, bool, torch.device], nvrtc.Kernels] = _compiled_for

    def sweep(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> Swept:
        """All steps from y0 (B, H, W, C)."""
        w1, w2, bias1, bias2, map1, map2, g1, g2, g3, b1, b2, b3 = field
        batch, side, _, channels = y0.shape
        steps, device = lengths.shape[0], y0.device
        kernels = self.compiled(problem, side, self.warpgroups, device)
        evaluations = steps * (problem.tableau.stages - 1) + 1
        cells = (evaluations, batch, side, side, channels)
        stages = torch.empty(cells, device=device)
        active1, active2 = self._factors(evaluations if problem.save else 0, batch, side, device)
        own = (3, evaluations, batch, side, _THREADS, 2) if problem.save else (0,)  # as their threads hold them
        normals = torch.empty(own, device=device, dtype=torch.int32)
        rstds = torch.empty((evaluations, batch, 3, channels // 2) if problem.save else (0,), device=device)
        squares = torch.empty(steps, batch, 4, device=device)
        packed = torch.empty((2, _KERNEL_BYTES), device=device, dtype=torch.uint8)
        w1, w2 = _with_whole_kernels(w1, w2)
        maps = torch.empty((2, 3, _THREADS, 4), device=device)
        words = packed.numel() // 4
        given: list[nvrtc.Argument] = [w1, w2, w1.stride(0), w1.stride(1), map1.contiguous(), map2.contiguous(), packed, maps]
        kernels.launch("pack_weights", -(-words // 256), 256, 0, given)
        norms = torch.stack([g1, b1, g2, b2, g3, b3])
        arguments: list[nvrtc.Argument] = [y0, starts, lengths, steps, _coefficients(problem.tableau), packed[0], bias1, bias2]
        arguments += [maps, norms, stages, active1, active2, normals, rstds, squares, batch]
        arguments += [float(problem.rtol), float(problem.atol)]
        blocks, threads = _blocks(batch, device), _SAMPLES * _THREADS
        shared = shared_bytes(side, self.warpgroups)
        kernels.launch("forward", blocks, threads, shared, arguments, long=True)
        return Swept(stages, squares.sum(dim=2), (active1, active2), (packed, norms, normals, rstds))

    def sweep_back(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> SweptBack:
        """From the gradients of all stages (J, B, H, W, C)."""
        packed, norms, normals, rstds = saved
        evaluations, batch, side, _, channels = d_stages.shape
        device, n_stages = d_stages.device, problem.tableau.stages
        kernels = self.compiled(problem, side, self.warpgroups, device)
        d_conv1, d_conv2 = self._factors(evaluations, batch, side, device)
        d_arguments = torch.empty((n_stages, batch, side, _THREADS, 4), device=device)
        d_y0 = torch.empty(d_stages.shape[1:], device=device)
        d_norms = torch.empty((batch, 6, channels), device=device)
        method = _coefficients(problem.tableau)
        arguments: list[nvrtc.Argument] = [d_stages, lengths, lengths.shape[0], method, packed[1], norms, normals, rstds]
        arguments += [d_conv1, d_conv2, d_arguments, d_y0, d_norms, batch]
        blocks, threads = _blocks(batch, device), _SAMPLES * _THREADS
        shared = shared_bytes(side, self.warpgroups)
        kernels.launch("backward", blocks, threads, shared, arguments, long=True)
        return SweptBack(d_y0, (d_conv1, d_conv2), d_norms)

    def _factors(self, evaluations: int, batch: int, side: int, device: torch.device) -> Pair:
        """Of both convolutions' gradients, for the sweeps to fill: as `conv_gradients` or torch takes them."""
        whole = (evaluations, batch, side, side, _CHANNELS)
        shape = planes_shape(evaluations, batch, side) if self.warpgroups else whole
        first, second = (torch.empty(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
        return first, second

    def convolution_gradients(self, active: Pair, d_conv: Pair, weights: Pair, times: Tensor) -> ConvolutionGradients:
        """Gradients of kernels, biases and time maps: one kernel on warpgroups, else torch's."""
        if self.warpgroups:
            return conv_gradients(active, d_conv, times)
        return torch_gradients(active, d_conv, weights, times)


def _blocks(batch: int, device: torch.device) -> int:
    """One for each multiprocessor: it goes over several pairs of samples with the kernels that it has once."""
    return nvrtc.even_blocks(-(-batch // _SAMPLES), nvrtc.multiprocessors(device))


def _coefficients(tableau: ButcherTableau) -> tuple[float, ...]:
    """Rows of all stages' arguments, of the error (zero without an estimate) and of times."""
    n = tableau.stages
    rows = [(*row, *(0.0,) * (n - len(row))) for row in tableau.a]
    return tuple(value for row in (*rows, tableau.error or (0.0,) * n, tableau.c) for value in row)


def _with_whole_kernels(w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """Two (out, in, 3, 3) in one memory order with the nine taps side by side; slices of the layers' parameters are already."""
    if w1.stride() == w2.stride() and w1.stride()[2:] == (3, 1):
        return w1, w2
    return w1.contiguous(), w2.contiguous()
