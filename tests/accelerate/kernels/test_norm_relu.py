"""GroupNorm and ReLU in one kernel per direction, in float32 and bfloat16, against the layers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernels.comparisons import norm_errors
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.cuda import norm_relu

DTYPES = [torch.bfloat16, torch.float32]


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "biased"),
    [
        ((2, 16, 2, 1), True),
        ((3, 32, 5, 7), True),
        ((2, 16, 16, 16), False),
        ((1, 32, 17, 19), True),
        ((2, 64, 15, 15), True),
        ((2, 64, 30, 30), False),
        ((1, 16, 32, 32), True),
    ],
)
def test_the_norm_equals_the_layers(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int], biased: bool, dtype: torch.dtype
):
    """From two positions to the largest number, full and partial rows of threads, both numbers of threads.

    Output and gradient of x are the float64 values rounded once; float32 sums in another order leave 1e-6 of the others.
    """
    emulate(monkeypatch)
    launches = []
    launch = norm_relu._launch
    monkeypatch.setattr(norm_relu, "_launch", lambda name, *rest: launches.append(name) or launch(name, *rest))
    errors = norm_errors(shape, biased, dtype, "cpu", poison=True)
    assert launches == ["norm_relu_forward", "norm_relu_backward"]
    assert errors.pop("output") < 1 and errors.pop("grad x") < 1 and max(errors.values()) < 1e-5, errors


def test_unsupported_norms_are_named_and_run_as_layers(monkeypatch: pytest.MonkeyPatch):
    """Another dtype, another number of channels per group, missing or rounded parameters, larger images, an older device."""
    emulate(monkeypatch)

    def reason(norm: nn.GroupNorm, side: int = 2, dtype: torch.dtype = torch.bfloat16) -> str | None:
        x = torch.randn(1, norm.num_channels, side, side, dtype=dtype)
        found = norm_relu.unsupported_reason(x, norm)
        if found is not None and norm.affine and norm.weight.dtype == dtype:
            assert torch.equal(norm_relu.norm_relu(x, norm), functional.relu(norm(x)))
        return found

    assert reason(nn.GroupNorm(8, 16)) is None and reason(nn.GroupNorm(8, 16), dtype=torch.float32) is None
    assert "float64" in str(reason(nn.GroupNorm(8, 16).double(), dtype=torch.float64))
    assert "1089 positions" in str(reason(nn.GroupNorm(8, 16), 33, torch.float32))
    assert "float32" in str(reason(nn.GroupNorm(8, 16).bfloat16()))
    assert "exist" in str(reason(nn.GroupNorm(8, 16, affine=False)))
    assert "two channels" in str(reason(nn.GroupNorm(4, 16), dtype=torch.float32))
    assert "multiple of 16" in str(reason(nn.GroupNorm(4, 8), dtype=torch.float32))
    emulate(monkeypatch, capability=(7, 5))
    assert "capability" in str(reason(nn.GroupNorm(8, 16), dtype=torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("side", [30, 15, 26, 13, 32])
def test_the_norm_equals_float64_on_cuda(side: int, biased: bool, dtype: torch.dtype):
    """The stems of CIFAR10 and MNIST, and the largest image; values rounded once, float32 sums leave 1e-6 of the others."""
    errors = norm_errors((256, 64, side, side), biased, dtype, "cuda", poison=True)
    assert errors.pop("output") < 1 and errors.pop("grad x") < 1 and max(errors.values()) < 1e-5, errors
