"""Gradients of the field's convolutions over all evaluations, on CUDA and emulated, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.comparisons import fill_free_memory
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.hopper import conv_gradients
from ltnode.accelerate.kernels.trajectory_backend import ConvolutionGradients, Pair, torch_gradients


def as_planes(pair: Pair) -> Pair:
    """Return (J, B, H, W, C) tensors in the layout of the kernels: rows of 8 positions, chunks of 8 channels."""

    def planes(x: Tensor) -> Tensor:
        evaluations, batch, side = x.shape[:3]
        rows = functional.pad(x, (0, 0, 0, 8 - side)).reshape(evaluations, batch, 8 * side, 8, 8)
        return rows.transpose(2, 3).contiguous()

    return planes(pair[0]), planes(pair[1])


def check(evaluations: int, batch: int, side: int, device: str) -> None:
    """The operands are exact in bfloat16; float32 sums of some thousand terms of both signs leave 1e-5 of them."""
    torch.manual_seed(0)

    def operands() -> Pair:
        first, second = torch.randn(2, evaluations, batch, side, side, 64, device=device).bfloat16()
        return first, second

    active, d_conv, times = operands(), operands(), torch.rand(evaluations, device=device)
    weights = (torch.zeros(64, 64, 3, 3, device=device),) * 2
    planes = as_planes(active), as_planes(d_conv)
    fill_free_memory(device)
    actual = conv_gradients.conv_gradients(*planes, times)

    def exact(pair: Pair) -> Pair:
        return pair[0].double(), pair[1].double()

    expected = torch_gradients(exact(active), exact(d_conv), exact(weights), times)
    assert isinstance(actual, ConvolutionGradients) and actual.weights[0].shape == (64, 64, 3, 3)
    for name in ("weights", "biases", "time_maps"):
        for a, b in zip(getattr(actual, name), getattr(expected, name), strict=True):
            assert a.shape == b.shape and a.dtype == torch.float32
            assert float((a.double() - b).norm() / b.norm()) < 1e-5, name


@needs_compiler
@pytest.mark.parametrize(("evaluations", "batch", "side"), [(1, 1, 7), (3, 2, 6), pytest.param(7, 3, 6, marks=pytest.mark.slow)])
def test_emulated_kernels_sum_over_all_evaluations(monkeypatch: pytest.MonkeyPatch, evaluations: int, batch: int, side: int):
    """One item, fewer than blocks; several items per block; more pairs than buffers, and a last pair with only one item."""
    emulate(monkeypatch)
    check(evaluations, batch, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("evaluations", "batch", "side"), [(1, 1, 7), (7, 256, 7), (13, 100, 6), (2, 3, 2)])
def test_kernels_sum_over_all_evaluations(evaluations: int, batch: int, side: int):
    """From one item to the number of items in training, and odd numbers."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(evaluations, batch, side, "cuda")
