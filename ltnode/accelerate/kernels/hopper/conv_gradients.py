"""Gradients of the field's convolutions over all evaluations of a trajectory, in bfloat16: the launches of conv_gradients.cu.

The reference is `ltnode.accelerate.kernels.trajectory_backend.torch_gradients`.
"""

from __future__ import annotations

import torch

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.trajectory_backend import ConvolutionGradients, Pair
from ltnode.typing import Tensor

_CHANNELS, _THREADS = 64, 512


def planes_shape(evaluations: int, batch: int, side: int) -> tuple[int, ...]:
    """Shape in which the kernels read activations and gradients: (J, B, C / 8, rows of 8 positions, 8 channels)."""
    return evaluations, batch, _CHANNELS // 8, 8 * side, 8


def conv_gradients(active: Pair, d_conv: Pair, times: Tensor) -> ConvolutionGradients:
    """Return the gradients of weights, biases and time maps. Each convolution takes half of the blocks.

    Args:
        active: Inputs of the two convolutions in bfloat16, in `planes_shape`, with zeros in the columns from ``side`` on.
        d_conv: Gradients of their outputs, in the same layout.
        times: Times of the evaluations, (J,).
    """
    evaluations, batch, _, positions, _ = active[0].shape
    device, items, side, channels = active[0].device, evaluations * batch, positions // 8, _CHANNELS
    module = devices.compiled("conv_gradients", (("SIDE", side),), device)
    # A third of a shared device: the partial sums of each block are large.
    blocks = 2 * min(max(devices.multiprocessors(device, parts=3) // 2, 1), items)
    part_size = 9 * channels**2 + side**2 * channels + channels
    parts = torch.empty((blocks, part_size), device=device)
    arguments: list[devices.Argument] = [*active, *d_conv, times.contiguous(), parts, batch, items, blocks]
    module.launch("field_gradients", blocks, _THREADS, _shared_bytes(side), arguments, long=True)
    d_weights = torch.empty((2, channels, channels, 3, 3), device=device)
    d_maps = torch.empty((2, channels, side, side), device=device)
    d_biases = torch.empty((2, channels), device=device)
    module.launch("add_parts", -(-2 * part_size // 256), 256, 0, [parts, d_weights, d_maps, d_biases, blocks])
    return ConvolutionGradients((d_weights[0], d_weights[1]), (d_biases[0], d_biases[1]), (d_maps[0], d_maps[1]))


def _shared_bytes(side: int) -> int:
    """Shared memory of a block: three buffers with the planes of both operands, sums of four warps, two mbarriers per buffer."""
    positions = 2 * 8 * side
    lines = (3 * 9 + positions | 1) + (positions | 1)
    return 3 * 8 * 16 * lines + 4 * 4 * _CHANNELS + 2 * 3 * 8
