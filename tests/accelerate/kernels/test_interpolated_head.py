"""Dense output, norm, ReLU and mean over positions in one kernel per direction, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import head_errors, relative
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate import fused
from ltnode.accelerate.kernels.cuda import interpolated_head
from ltnode.models import images


@needs_compiler
@pytest.mark.parametrize(
    ("ends", "side", "evaluations", "per_sample"),
    [
        (1, 3, 4, False),
        (7, 3, 19, False),
        (10, 2, 4, True),
        (16, 3, 4, True),
        (20, 2, 7, False),
        (40, 2, 4, True),
        pytest.param(23, 7, 8, True, marks=pytest.mark.slow),
    ],
)
def test_the_head_equals_the_layers(monkeypatch: pytest.MonkeyPatch, ends: int, side: int, evaluations: int, per_sample: bool):
    """From one end-time to several chunks, with and without extra end-times; more stages than one product has.

    Float32 sums in another order leave 1e-5, and ReLU masks flip where a state is zero up to rounding.
    """
    emulate(monkeypatch)
    monkeypatch.setattr(interpolated_head, "_BLOCKS_PER_MULTIPROCESSOR", 1)  # so that some blocks have two samples
    errors = head_errors(ends, side, "cpu", 32, batch=3, evaluations=evaluations, per_sample=per_sample, poison=True)
    assert max(errors.values()) < 1e-4, errors


@needs_compiler
def test_the_kernel_and_the_layers_give_the_same_outputs(monkeypatch: pytest.MonkeyPatch):
    """A head through the kernel, and through `states_at` and the layers where the kernel is not supported; float32 rounding."""
    torch.manual_seed(0)
    head = images.classifier(3, 32)
    head[0] = nn.GroupNorm(16, 32)
    stages = torch.randn(7, 3, 2, 2, 32).permute(0, 1, 4, 2, 3)
    base = torch.randn(3, 32, 2, 2).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(10, 7)
    layers = fused._head_outputs(head, stages, base, weights)
    calls = []
    kernel = interpolated_head.interpolated_head
    monkeypatch.setattr(interpolated_head, "interpolated_head", lambda *a: calls.append(len(a)) or kernel(*a))
    emulate(monkeypatch)
    assert relative(fused._head_outputs(head, stages, base, weights), layers, 1e-9) < 1e-5 and calls


def test_unsupported_heads_are_named(monkeypatch: pytest.MonkeyPatch):
    """Each reason says what is not supported."""
    stages = torch.zeros(4, 2, 32, 3, 3)
    assert "cpu" in str(interpolated_head.unsupported_reason(nn.GroupNorm(16, 32), stages))
    emulate(monkeypatch)
    assert interpolated_head.unsupported_reason(nn.GroupNorm(16, 32), stages) is None
    assert "two channels" in str(interpolated_head.unsupported_reason(nn.GroupNorm(8, 32), stages))
    assert "multiple of 16" in str(interpolated_head.unsupported_reason(nn.GroupNorm(12, 24), torch.zeros(4, 2, 24, 3, 3)))
    assert "scale" in str(interpolated_head.unsupported_reason(nn.GroupNorm(16, 32, affine=False), stages))
    assert "81 positions" in str(interpolated_head.unsupported_reason(nn.GroupNorm(16, 32), torch.zeros(4, 2, 32, 9, 9)))
    emulate(monkeypatch, capability=(7, 5))
    assert "capability" in str(interpolated_head.unsupported_reason(nn.GroupNorm(16, 32), stages))


@pytest.mark.gpu
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize("ends", [1, 10, 16, 20, 100])
def test_the_head_equals_the_float64_reference_on_cuda(ends: int, side: int, per_sample: bool):
    """At the sizes of training; float32 sums in another order leave 1e-6, a ReLU mask that flips at zero 1e-3 of a gradient."""
    errors = head_errors(ends, side, "cuda", batch=256 if ends < 100 else 16, evaluations=13, per_sample=per_sample, poison=True)
    assert errors["output"] < 1e-5 and max(errors.values()) < 5e-3, errors
