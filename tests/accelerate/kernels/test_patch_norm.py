"""First convolution, norm and ReLU in one kernel per direction, against the layers; the CUDA source runs as C++ on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory, relative
from kernels.emulated import COMPILER, emulated_patch_norm
from ltnode.accelerate.kernels import norm_relu
from ltnode.accelerate.kernels.cuda import patch_norm


def layers_of(channels: int, size: int, width: int, device: str) -> tuple[nn.Conv2d, nn.GroupNorm]:
    """With parameters that all matter: biases and shifts away from zero, weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(channels, width, size), nn.GroupNorm(width // 2, width)
    with torch.no_grad():
        conv.weight.copy_(torch.randn_like(conv.weight).bfloat16())
        conv.bias.copy_(torch.randn(width))
        norm.weight.copy_(1 + 0.3 * torch.randn(width))
        norm.bias.copy_(0.3 * torch.randn(width))
    return conv.to(device), norm.to(device)


def errors(shape: tuple[int, ...], size: int, width: int, device: str, offset: float = 0.0) -> dict[str, float]:
    """Those of `errors_of` for the layers of `layers_of`."""
    return errors_of(*layers_of(shape[1], size, width, device), shape, offset)


def errors_of(conv: nn.Conv2d, norm: nn.GroupNorm, shape: tuple[int, ...], offset: float = 0.0) -> dict[str, float]:
    """Relative errors of the output and of all gradients against float64, for images that bfloat16 holds exactly."""
    device = conv.weight.device.type
    x = (torch.randn(shape, device=device) + offset).bfloat16().float()
    parameters = [*conv.parameters(), *norm.parameters()]
    if device == "cuda":
        fill_free_memory(device)
    got = patch_norm.patch_norm(x, conv, norm)
    assert got.dtype == torch.bfloat16 and got.is_contiguous(memory_format=torch.channels_last)
    given = torch.randn(got.shape, device=device).bfloat16()
    gradients = torch.autograd.grad(got, parameters, given)
    exact = nn.Sequential(conv, norm).double()
    wanted = torch.relu(exact(x.double()))
    wanted_gradients = torch.autograd.grad(wanted, list(exact.parameters()), given.double())
    names = ("output", "weight", "bias", "scale", "shift")
    pairs = zip(names, (got, *gradients), (wanted, *wanted_gradients), strict=True)
    return {name: relative(a, b, 0.0) for name, a, b in pairs}


def check(found: dict[str, float]) -> None:
    """The output is rounded to bfloat16 once; the factors of the gradients' sums are exact in it, and the sums are float32.

    What is left of the gradients' errors are ReLU's masks that turn where the activation is zero up to float32 rounding: a few
    of the 15 million at the size of training, each with a whole gradient, which is more than 1e-4 of a sum of random signs.
    """
    assert found.pop("output") < 2.0**-8, found
    assert max(found.values()) < 1e-3, found


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
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
    """One k-step and two, full or not; warps without a position, positions that end within a tile, images that are not square."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    check(errors(shape, size, width, "cpu"))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
def test_masks_follow_the_signs_of_scale_and_shift(monkeypatch: pytest.MonkeyPatch):
    """Scales that are negative, zero or so small that the shift decides; with both zero, the output is and no gradient passes."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    conv, norm = layers_of(3, 3, 64, "cpu")
    with torch.no_grad():
        norm.weight[::3] *= -1
        norm.weight[4:8] = torch.tensor([0.0, 0.0, 1e-30, -1e-30])
        norm.weight[8] = norm.bias[8] = 0.0
        norm.bias[4:8] = torch.tensor([0.3, -0.3, 0.3, -0.3])
    check(errors_of(conv, norm, (2, 3, 9, 7)))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
def test_an_output_of_exactly_zero_passes_no_gradient(monkeypatch: pytest.MonkeyPatch):
    """Black images, one bias and no shift: x is its mean everywhere, and ReLU's derivative at zero is zero."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    conv, norm = layers_of(1, 3, 32, "cpu")
    with torch.no_grad():
        conv.bias.fill_(0.5)
        norm.bias.zero_()
        norm.weight[::3] *= -1
    out = patch_norm.patch_norm(torch.zeros(1, 1, 6, 6), conv, norm)
    gradients = torch.autograd.grad(out, [*conv.parameters(), *norm.parameters()], torch.ones_like(out))
    assert not out.any() and not any(gradient.any() for gradient in gradients)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
def test_a_large_mean_does_not_spoil_the_deviation(monkeypatch: pytest.MonkeyPatch):
    """A group whose mean is some hundred deviations: sums of plain squares would lose four digits more."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    found = errors((1, 1, 12, 12), 3, 32, "cpu", offset=64.0)
    assert found["output"] < 2.0**-7 and found["scale"] < 1e-3, found


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(256, 3, 32, 32), (256, 1, 28, 28), (3, 3, 9, 7)])
def test_one_kernel_equals_the_layers_on_cuda(shape: tuple[int, int, int, int]):
    """At the sizes of training, in memory that was full of NaN."""
    check(errors(shape, 3, 64, "cuda"))


@pytest.mark.gpu
def test_a_stem_takes_the_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch):
    """Under autocast to bfloat16, and only there: in float32 the layers run."""
    calls: list[torch.Size] = []
    real = patch_norm.patch_norm
    monkeypatch.setattr(patch_norm, "patch_norm", lambda x, conv, norm: (calls.append(x.shape), real(x, conv, norm))[1])
    stem = nn.Sequential(*layers_of(3, 3, 64, "cuda"), nn.ReLU(), nn.Conv2d(64, 8, 2).cuda())
    x = torch.randn(4, 3, 8, 8, device="cuda")
    wanted = norm_relu.run_fused(stem, x)
    assert not calls
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = norm_relu.run_fused(stem, x)
    assert calls == [x.shape] and float((got - wanted).detach().norm() / wanted.detach().norm()) < 0.03


def test_other_layers_say_why_they_stay_layers():
    """Each reason names what is in the way."""
    x = torch.zeros(1, 3, 8, 8)
    conv, norm = nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64)
    assert patch_norm.why_not_layers(conv, norm, x) is None
    assert "cpu" in str(patch_norm.why_not(conv, norm, x))
    assert "gradient" in str(patch_norm.why_not(conv, norm, x.requires_grad_()))
    for wrong, other, words in (
        (nn.Conv2d(4, 64, 3), norm, "neighbourhood"),
        (nn.Conv2d(3, 64, 3, padding=1), norm, "padding"),
        (nn.Conv2d(3, 64, (3, 2)), norm, "square"),
        (conv, nn.GroupNorm(16, 64), "two in a group"),
        (nn.Conv2d(3, 48, 3), nn.GroupNorm(24, 48), "channels"),
        (nn.Conv2d(3, 64, 3, bias=False), norm, "bias"),
        (conv, nn.GroupNorm(32, 64, affine=False), "scale"),
        (nn.Conv2d(3, 64, 3).double(), norm, "float32"),
    ):
        assert words in str(patch_norm.why_not_layers(wrong, other, x)), words
    assert "large" in str(patch_norm.why_not_layers(conv, norm, torch.zeros(1, 3, 64, 64)))
