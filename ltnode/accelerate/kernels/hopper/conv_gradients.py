"""Gradients of the field's convolutions over all evaluations of a trajectory, in bfloat16 on warpgroups.

These are the launches of conv_gradients.cu; the reference is `ltnode.accelerate.kernels.conv_trajectory.torch_gradients`.
"""

from __future__ import annotations

import torch

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.conv_trajectory import ConvolutionGradients, Pair
from ltnode.typing import Tensor

_CHANNELS, _THREADS = 64, 512


def planes_shape(evaluations: int, batch: int, side: int) -> tuple[int, ...]:
    """Of activations and gradients as the kernels read them: (J, B, C / 8, rows of 8 positions, 8 channels)."""
    return evaluations, batch, _CHANNELS // 8, 8 * side, 8


def conv_gradients(active: Pair, d_conv: Pair, times: Tensor) -> ConvolutionGradients:
    """Of kernels, biases and time maps, each convolution with half of the card.

    Args:
        active: Inputs of the two convolutions in bfloat16, shaped as `planes_shape` says and zero in the columns beyond the
            side, which is at most 7.
        d_conv: Gradients of their outputs, the same.
        times: Of the evaluations, (J,).
    """
    evaluations, batch, _, positions, _ = active[0].shape
    device, items, side, channels = active[0].device, evaluations * batch, positions // 8, _CHANNELS
    kernels = _compiled_for(side, device)
    blocks = 2 * min(max(nvrtc.multiprocessors(device, parts=3) // 2, 1), items)  # each leaves much to add
    left = 9 * channels**2 + side**2 * channels + channels
    parts = torch.empty((blocks, left), device=device)
    arguments: list[nvrtc.Argument] = [*active, *d_conv, times.contiguous(), parts, batch, items, blocks]
    kernels.launch("field_gradients", blocks, _THREADS, _shared_bytes(side), arguments, long=True)
    d_weights = torch.empty((2, channels, channels, 3, 3), device=device)
    d_maps = torch.empty((2, channels, side, side), device=device)
    d_biases = torch.empty((2, channels), device=device)
    kernels.launch("add_parts", -(-2 * left // 256), 256, 0, [parts, d_weights, d_maps, d_biases, blocks])
    return ConvolutionGradients((d_weights[0], d_weights[1]), (d_biases[0], d_biases[1]), (d_maps[0], d_maps[1]))


def _compiled_for(side: int, device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("conv_gradients", (("SIDE", side),), device)


def _shared_bytes(side: int) -> int:
    """Of a block: three buffers with the planes of both factors, sums of four warps, and two gates for each buffer."""
    positions = 2 * 8 * side
    lines = (3 * 9 + positions | 1) + (positions | 1)
    return 3 * 8 * 16 * lines + 4 * 4 * _CHANNELS + 2 * 3 * 8
