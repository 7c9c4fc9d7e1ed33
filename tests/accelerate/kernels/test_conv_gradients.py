"""Gradients of the field's convolutions over all evaluations, against float64; the CUDA source runs as C++ on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.comparisons import fill_free_memory
from kernels.emulated import COMPILER, emulated_gradients
from ltnode.accelerate.kernels.conv_trajectory import ConvolutionGradients, Pair, torch_gradients
from ltnode.accelerate.kernels.hopper import conv_gradients


def as_planes(pair: Pair) -> Pair:
    """(J, B, H, W, C) as the kernels read it: rows of 8 positions, 8 channels at a time."""

    def planes(x: Tensor) -> Tensor:
        evaluations, batch, side = x.shape[:3]
        rows = functional.pad(x, (0, 0, 0, 8 - side)).reshape(evaluations, batch, 8 * side, 8, 8)
        return rows.transpose(2, 3).contiguous()

    return planes(pair[0]), planes(pair[1])


def check(evaluations: int, batch: int, side: int, device: str) -> None:
    """Factors that bfloat16 holds exactly: sums in float32, some thousand terms of both signs, leave 1e-5 of them."""
    torch.manual_seed(0)

    def factors() -> Pair:
        first, second = torch.randn(2, evaluations, batch, side, side, 64, device=device).bfloat16()
        return first, second

    active, d_conv, times = factors(), factors(), torch.rand(evaluations, device=device)
    weights = (torch.zeros(64, 64, 3, 3, device=device),) * 2
    planes = as_planes(active), as_planes(d_conv)
    fill_free_memory(device)
    got = conv_gradients.conv_gradients(*planes, times)

    def exact(pair: Pair) -> Pair:
        return pair[0].double(), pair[1].double()

    wanted = torch_gradients(exact(active), exact(d_conv), exact(weights), times)
    assert isinstance(got, ConvolutionGradients) and got.weights[0].shape == (64, 64, 3, 3)
    for name in ("weights", "biases", "time_maps"):
        for a, b in zip(getattr(got, name), getattr(wanted, name), strict=True):
            assert a.shape == b.shape and a.dtype == torch.float32
            assert float((a.double() - b).norm() / b.norm()) < 1e-5, name


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize(("evaluations", "batch", "side"), [(1, 1, 7), (3, 2, 6), pytest.param(7, 3, 6, marks=pytest.mark.slow)])
def test_kernels_as_cpp_sum_over_all_evaluations(monkeypatch: pytest.MonkeyPatch, evaluations: int, batch: int, side: int):
    """One sample, fewer than blocks; several for each block; more than it has buffers for, and the last of them with fewer."""
    monkeypatch.setattr(conv_gradients, "_compiled_for", emulated_gradients)
    check(evaluations, batch, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("evaluations", "batch", "side"), [(1, 1, 7), (7, 256, 7), (13, 100, 6), (2, 3, 2)])
def test_kernels_sum_over_all_evaluations(evaluations: int, batch: int, side: int):
    """As few and as many as training has, and odd numbers."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(evaluations, batch, side, "cuda")
