"""First convolution, norm and ReLU in one kernel per direction, on CUDA and emulated, against the layers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory, relative
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.fused_sequential import run_fused


def layers_of(channels: int, size: int, width: int, device: str) -> tuple[nn.Conv2d, nn.GroupNorm]:
    """Return layers whose biases and shifts are not zero and whose weights are exact in bfloat16."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(channels, width, size), nn.GroupNorm(width // 2, width)
    with torch.no_grad():
        conv.weight.copy_(torch.randn_like(conv.weight).bfloat16())
        conv.bias.copy_(torch.randn(width))
        norm.weight.copy_(1 + 0.3 * torch.randn(width))
        norm.bias.copy_(0.3 * torch.randn(width))
    return conv.to(device), norm.to(device)


def errors(shape: tuple[int, ...], size: int, width: int, device: str, offset: float = 0.0) -> dict[str, float]:
    """Return `errors_of` for the layers of `layers_of`."""
    return errors_of(*layers_of(shape[1], size, width, device), shape, offset)


def errors_of(conv: nn.Conv2d, norm: nn.GroupNorm, shape: tuple[int, ...], offset: float = 0.0) -> dict[str, float]:
    """Return relative errors of the output and of all gradients against float64, for images that are exact in bfloat16."""
    device = conv.weight.device.type
    x = (torch.randn(shape, device=device) + offset).bfloat16().float()
    parameters = [*conv.parameters(), *norm.parameters()]
    if device == "cuda":
        fill_free_memory(device)
    actual = patch_norm.patch_norm(x, conv, norm)
    assert actual.dtype == torch.bfloat16 and actual.is_contiguous(memory_format=torch.channels_last)
    d_out = torch.randn(actual.shape, device=device).bfloat16()
    gradients = torch.autograd.grad(actual, parameters, d_out)
    exact = nn.Sequential(conv, norm).double()
    expected = torch.relu(exact(x.double()))
    expected_gradients = torch.autograd.grad(expected, list(exact.parameters()), d_out.double())
    names = ("output", "weight", "bias", "scale", "shift")
    pairs = zip(names, (actual, *gradients), (expected, *expected_gradients), strict=True)
    return {name: relative(a, b, 0.0) for name, a, b in pairs}


def check(found: dict[str, float]) -> None:
    """The output is rounded to bfloat16 once; the operands of the gradients are exact in bfloat16 and their sums are float32.

    The remaining errors of the gradients are ReLU masks that flip where an activation is zero up to float32 rounding: a few of
    the 15 million at the size of training, each of which is more than 1e-4 of a sum of random signs.
    """
    assert found.pop("output") < 2.0**-8, found
    assert max(found.values()) < 1e-3, found


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "size", "width"),
    [
        ((2, 3, 9, 7), 3, 64),
        ((1, 3, 32, 32), 3, 64),
        ((2, 1, 28, 28), 3, 64),
        ((2, 1, 5, 5), 3, 32),
        ((1, 2, 3, 8), 1, 128),
        ((1, 8, 9, 9), 2, 64),
        ((1, 16, 4, 6), 1, 256),
    ],
)
def test_one_kernel_equals_the_layers(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int], size: int, width: int):
    """One k-step and two, full or not; warps without positions, a partial last tile, images that are not square."""
    emulate(monkeypatch)
    check(errors(shape, size, width, "cpu"))


@needs_compiler
def test_masks_follow_the_signs_of_scale_and_shift(monkeypatch: pytest.MonkeyPatch):
    """Scales that are negative, zero or so small that the shift decides; with scale and shift zero, no gradient passes."""
    emulate(monkeypatch)
    conv, norm = layers_of(3, 3, 64, "cpu")
    with torch.no_grad():
        norm.weight[::3] *= -1
        norm.weight[4:8] = torch.tensor([0.0, 0.0, 1e-30, -1e-30])
        norm.weight[8] = norm.bias[8] = 0.0
        norm.bias[4:8] = torch.tensor([0.3, -0.3, 0.3, -0.3])
    check(errors_of(conv, norm, (2, 3, 9, 7)))


@needs_compiler
def test_an_output_of_exactly_zero_passes_no_gradient(monkeypatch: pytest.MonkeyPatch):
    """Black images, equal biases and no shift: x equals its mean everywhere, and the derivative of ReLU at zero is zero."""
    emulate(monkeypatch)
    conv, norm = layers_of(1, 3, 32, "cpu")
    with torch.no_grad():
        conv.bias.fill_(0.5)
        norm.bias.zero_()
        norm.weight[::3] *= -1
    out = patch_norm.patch_norm(torch.zeros(1, 1, 6, 6), conv, norm)
    gradients = torch.autograd.grad(out, [*conv.parameters(), *norm.parameters()], torch.ones_like(out))
    assert not out.any() and not any(gradient.any() for gradient in gradients)


@needs_compiler
def test_a_large_mean_does_not_spoil_the_deviation(monkeypatch: pytest.MonkeyPatch):
    """The mean of a group is some hundred standard deviations: sums of plain squares would lose four more digits."""
    emulate(monkeypatch)
    found = errors((1, 1, 12, 12), 3, 32, "cpu", offset=64.0)
    assert found["output"] < 2.0**-7 and found["scale"] < 1e-3, found


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(256, 3, 32, 32), (256, 1, 28, 28), (3, 3, 9, 7)])
def test_one_kernel_equals_the_layers_on_cuda(shape: tuple[int, int, int, int]):
    """At the sizes of training, in memory filled with NaN."""
    check(errors(shape, 3, 64, "cuda"))


@pytest.mark.gpu
def test_a_stem_takes_the_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch):
    """Under autocast to bfloat16 only; in float32 the layers run."""
    calls: list[torch.Size] = []
    real = patch_norm.patch_norm
    monkeypatch.setattr(patch_norm, "patch_norm", lambda x, conv, norm: (calls.append(x.shape), real(x, conv, norm))[1])
    stem = nn.Sequential(*layers_of(3, 3, 64, "cuda"), nn.ReLU(), nn.Conv2d(64, 8, 2).cuda())
    x = torch.randn(4, 3, 8, 8, device="cuda")
    expected = run_fused(stem, x)
    assert not calls
    with torch.autocast("cuda", dtype=torch.bfloat16):
        actual = run_fused(stem, x)
    assert calls == [x.shape] and float((actual - expected).detach().norm() / expected.detach().norm()) < 0.03


def test_unsupported_layers_are_named(monkeypatch: pytest.MonkeyPatch):
    """Each reason says what is not supported."""
    x = torch.zeros(1, 3, 8, 8)
    conv, norm = nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64)
    assert "cpu" in str(patch_norm.unsupported_reason(conv, norm, x))
    emulate(monkeypatch)
    assert patch_norm.unsupported_reason(conv, norm, x) is None
    assert "gradient" in str(patch_norm.unsupported_reason(conv, norm, torch.zeros(1, 3, 8, 8, requires_grad=True)))
    for wrong, other, words in (
        (nn.Conv2d(4, 64, 3), norm, "patch"),
        (nn.Conv2d(3, 64, 3, padding=1), norm, "padding"),
        (nn.Conv2d(3, 64, (3, 2)), norm, "square"),
        (conv, nn.GroupNorm(16, 64), "two in a group"),
        (nn.Conv2d(3, 48, 3), nn.GroupNorm(24, 48), "channels"),
        (nn.Conv2d(3, 64, 3, bias=False), norm, "bias"),
        (conv, nn.GroupNorm(32, 64, affine=False), "scale"),
        (nn.Conv2d(3, 64, 3).double(), norm, "float32"),
    ):
        assert words in str(patch_norm.unsupported_reason(wrong, other, x)), words
    assert "large" in str(patch_norm.unsupported_reason(conv, norm, torch.zeros(1, 3, 64, 64)))
    emulate(monkeypatch, capability=(7, 5))
    assert "capability" in str(patch_norm.unsupported_reason(conv, norm, x))
