"""A first convolution written as a matrix product, against the convolution; its CUDA kernel runs as C++ on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernels.comparisons import fill_free_memory
from kernels.emulated import COMPILER, emulated_patches
from ltnode.kernels import patch_conv


def compare(shape: tuple[int, ...], outputs: int, size: int, device: str) -> None:
    """Result and gradient against the convolution in float64 of the same rounded numbers; they are rounded to bfloat16 once."""
    torch.manual_seed(0)
    x = torch.randn(shape, device=device).bfloat16().contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, shape[1], size, size, device=device).bfloat16().contiguous(memory_format=torch.channels_last)
    exact = weight.double().requires_grad_()
    wanted = functional.conv2d(x.double(), exact)
    given = torch.randn_like(wanted).bfloat16()
    wanted_gradient = torch.autograd.grad((wanted * given.double()).sum(), exact)[0]
    if device == "cuda":
        fill_free_memory(device)
    weight.requires_grad_()
    got = patch_conv.patch_conv(x, weight)
    gradient = torch.autograd.grad(got, weight, given)[0]
    assert got.is_contiguous(memory_format=torch.channels_last)
    for a, b in ((got, wanted), (gradient, wanted_gradient)):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 2.0**-8


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("shape", [(3, 3, 9, 7), (2, 1, 5, 5)])
@pytest.mark.parametrize("size", [3, 1])
def test_the_product_is_the_convolution(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], size: int):
    """Three channels and one, images that are not square."""
    monkeypatch.setattr(patch_conv, "_compiled_for", emulated_patches)
    compare(shape, 8, size, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(256, 3, 32, 32), (256, 1, 28, 28)])
def test_the_product_is_the_convolution_on_cuda(shape: tuple[int, ...]):
    """At the sizes of training."""
    compare(shape, 64, 3, "cuda")


def test_other_layers_say_why_they_stay_convolutions():
    """Each reason names what is in the way."""
    x = torch.zeros(1, 3, 8, 8, device="meta", dtype=torch.bfloat16)
    assert "float32" in str(patch_conv.why_not(nn.Conv2d(3, 4, 3), x.float()))
    assert "gradient" in str(patch_conv.why_not(nn.Conv2d(3, 4, 3), x.float().requires_grad_()))
