"""A Sequential run in fused kernels equals its layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import layer_errors, relative
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.device import product_precision
from ltnode.models import images

MIXED = nn.Sequential(
    nn.Conv2d(1, 12, 3),
    nn.GroupNorm(4, 12),
    nn.ReLU(),
    nn.Conv2d(12, 16, 3, bias=False),
    nn.GroupNorm(8, 16),
    nn.ReLU(),
    nn.Conv2d(16, 8, 3),
    nn.ReLU(),
    nn.Conv2d(8, 8, 1, padding_mode="reflect"),
)
"""Layers with and without kernels: norms with two and three channels per group, convolutions without bias, other padding."""


@needs_compiler
@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (images.down_sampling(1, 64), (2, 1, 20, 20)),
        (images.down_sampling(1, 32), (1, 1, 12, 12)),
        (MIXED, (2, 1, 9, 9)),
        (images.classifier(3, 64), (2, 64, 3, 3)),
        (images.encoder(1, 64), (2, 1, 14, 14)),
    ],
    ids=["stem", "stem with one channel per group", "mixed layers", "head", "pooling after a convolution with bias"],
)
def test_fused_layers_equal_the_layers(monkeypatch: pytest.MonkeyPatch, layers: nn.Sequential, shape: tuple[int, ...]):
    """In float32 against float64: sums in another order; 1e-3 for a ReLU that flips at zero."""
    emulate(monkeypatch)
    errors = layer_errors(layers, shape, "cpu", poison=True)
    assert max(errors.values()) < 1e-3, errors


@needs_compiler
def test_pooled_activations_are_not_rounded(monkeypatch: pytest.MonkeyPatch):
    """In bfloat16, the mean over positions is taken of float32 activations and returned in float32; sums leave 1e-6."""
    emulate(monkeypatch)
    torch.manual_seed(0)
    layers, x = images.pooled(64), torch.randn(2, 64, 7, 7).bfloat16()
    pooled = run_fused(layers, x)
    assert pooled.dtype == torch.float32
    assert relative(pooled, layers.double()(x.double()), 1e-9) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (images.down_sampling(3), (256, 3, 32, 32)),
        (images.down_sampling(1), (256, 1, 28, 28)),
        (images.classifier(), (256, 64, 7, 7)),
        (images.down_sampling(3), (4, 3, 64, 64)),
    ],
    ids=["CIFAR10 stem", "MNIST stem", "head", "images too large for the registers"],
)
def test_fused_layers_equal_the_layers_on_cuda(layers: nn.Sequential, shape: tuple[int, ...]):
    """At the sizes of training against float64 layers, without TF32. Some of the millions of ReLU masks flip at zero: 5e-3."""
    with product_precision("fp32"):
        errors = layer_errors(layers, shape, "cuda", poison=True)
    assert errors["output"] < 1e-4 and max(errors.values()) < 5e-3, errors


@pytest.mark.gpu
def test_fused_layers_in_bf16_stay_within_its_rounding():
    """The stem under autocast against float64; the result is float32 without a cast.

    8 bits in three convolutions leave 0.006 of the output; a few masks in a thousand flip, which is 0.06 of a gradient (0.08 with
    the plain layers under autocast).
    """
    torch.manual_seed(0)
    stem = images.down_sampling(3).cuda()
    x = torch.randn(256, 3, 32, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fused = run_fused(stem, x.to(dtype=torch.bfloat16, memory_format=torch.channels_last))
    assert fused.dtype == torch.float32 and fused.is_contiguous(memory_format=torch.channels_last)
    weight = torch.randn_like(fused)
    actual = torch.autograd.grad((fused * weight).sum(), list(stem.parameters()))
    exact = stem.double()(x.double())  # in place: the gradients above are those of the float32 parameters
    expected = torch.autograd.grad((exact * weight.double()).sum(), list(stem.parameters()))
    assert relative(fused, exact, 1e-9) < 2e-2
    floor = 1e-2 * max(float(b.norm()) for b in expected)
    assert max(relative(a, b, floor) for a, b in zip(actual, expected, strict=True)) < 0.15
