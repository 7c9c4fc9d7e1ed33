"""First convolution, norm and ReLU in one kernel per direction, against the layers; the CUDA source runs as C++ on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory
from kernels.emulated import COMPILER, emulated_patch_norm
from ltnode.kernels import norm_relu, patch_norm


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
    """Relative errors of the output and of all gradients against float64, for images that bfloat16 holds exactly."""
    conv, norm = layers_of(shape[1], size, width, device)
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
    return {name: float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for name, a, b in pairs}


def check(found: dict[str, float]) -> None:
    """The output is rounded to bfloat16 once, and so is each factor of the weight's gradient; the sums are float32."""
    assert found.pop("output") < 2.0**-8 and found.pop("weight") < 2.0**-7, found
    assert max(found.values()) < 1e-4, found


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize(
    ("shape", "size", "width"),
    [((2, 3, 9, 7), 3, 64), ((1, 3, 32, 32), 3, 64), ((2, 1, 28, 28), 3, 64), ((2, 1, 5, 5), 3, 32), ((1, 2, 3, 8), 1, 128)],
)
def test_one_kernel_equals_the_layers(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int], size: int, width: int):
    """One k-step and two, warps without a position, positions that end within a tile, images that are not square."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    check(errors(shape, size, width, "cpu"))


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
    assert calls == [x.shape] and float((got - wanted).norm() / wanted.norm()) < 0.03


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
