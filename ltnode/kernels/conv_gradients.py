"""Gradients of the field's convolutions over all evaluations of a trajectory, in bfloat16 on warpgroups.

These are the launches of conv_gradients.cu; the reference is `ltnode.kernels.conv_trajectory.torch_gradients`.
"""

from __future__ import annotations

import torch

from ltnode.kernels import nvrtc
from ltnode.kernels.conv_trajectory import ConvolutionGradients, Pair
from ltnode.typing import Tensor

_CHANNELS, _THREADS = 64, 512


def conv_gradients(active: Pair, d_conv: Pair, times: Tensor) -> ConvolutionGradients:
    """Of kernels, biases and time maps, each convolution with half of the card.

    Args:
        active: Inputs of the two convolutions (J, B, H, W, C) in bfloat16; C is 64, and there are at most 7 x 7 positions.
        d_conv: Gradients of their outputs, the same.
        times: Of the evaluations, (J,).
    """
    evaluations, batch, side, _, channels = active[0].shape
    device, items = active[0].device, evaluations * batch
    kernels = _compiled_for(side, device)
    blocks = 2 * min(nvrtc.multiprocessors(device) // 2, items)
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
    """Of a block: three buffers with the planes of both factors, and sums of four warps."""
    positions = -(-8 * side // 16) * 16
    lines = (2 * 9 + positions | 1) + (positions | 1)
    return 3 * 8 * 16 * lines + 4 * 4 * _CHANNELS
