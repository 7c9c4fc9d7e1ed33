"""The gradients of a stem's first two convolutions in one kernel, against the two kernels with the array between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory, relative
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.accelerate.kernels.hopper import halving_conv, stem_gradients


def stem_layers(channels: int, device: str) -> tuple[nn.Conv2d, nn.GroupNorm, nn.Conv2d]:
    """Return layers with scales of both signs, of which two are zero and two so small that the shift decides."""
    torch.manual_seed(0)
    conv, norm, halving = nn.Conv2d(channels, 64, 3), nn.GroupNorm(32, 64), nn.Conv2d(64, 64, 4, 2, 1)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * torch.randn(64))
        norm.weight[::3] *= -1
        norm.weight[4:8] = torch.tensor([0.0, 0.0, 1e-30, -1e-30])
        norm.bias.copy_(0.3 * torch.randn(64))
        norm.bias[4:8] = torch.tensor([0.3, -0.3, 0.3, -0.3])
    return conv.to(device), norm.to(device), halving.to(device)


def check(batch: int, channels: int, side: int, device: str) -> None:
    """The same values, rounded in the same places: float32 sums in another order leave 1e-5 of the gradients."""
    conv, norm, halving = stem_layers(channels, device)
    parameters = [*conv.parameters(), *norm.parameters(), halving.weight]
    x = torch.randn(batch, channels, side, side, device=device)
    fill_free_memory(device)
    actual = stem_gradients.stem(x, conv, norm, halving)
    expected = halving_conv.halving_conv(patch_norm.patch_norm(x, conv, norm), halving)
    assert actual.shape == expected.shape and torch.equal(actual, expected)
    d_out = torch.randn(actual.shape, device=device).bfloat16()
    references = torch.autograd.grad(expected, parameters, d_out)
    fill_free_memory(device)
    gradients = torch.autograd.grad(actual, parameters, d_out)
    for name, a, b in zip(("weight", "bias", "scale", "shift", "halving"), gradients, references, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5, name


@needs_compiler
@pytest.mark.parametrize(
    ("batch", "channels", "side"), [(1, 3, 32), pytest.param(6, 3, 32, marks=pytest.mark.slow), (1, 1, 28), (9, 2, 19)]
)
def test_the_emulated_kernel_equals_the_two(monkeypatch: pytest.MonkeyPatch, batch: int, channels: int, side: int):
    """Images of CIFAR10, one and more than blocks; of MNIST; an odd side with three images per block."""
    emulate(monkeypatch)
    check(batch, channels, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "channels", "side"), [(1, 3, 32), (256, 3, 32), (300, 1, 28), (133, 2, 19)])
def test_the_kernel_equals_the_two(batch: int, channels: int, side: int):
    """One image, fewer and more images than multiprocessors, the sizes of both image sets and an odd one."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(batch, channels, side, "cuda")


@needs_compiler
@pytest.mark.parametrize("side", [10, 17, 18])
def test_stems_of_small_images_have_the_gradients_of_their_layers(monkeypatch: pytest.MonkeyPatch, side: int):
    """Around the side from which one kernel computes the gradients of both layers; bfloat16 operands are rounded to 2^-9."""
    emulate(monkeypatch)
    conv, norm, halving = stem_layers(3, "cpu")
    layers, x = nn.Sequential(conv, norm, nn.ReLU(), halving), torch.randn(3, 3, side, side).bfloat16().float()
    assert (stem_gradients.unsupported_reason(conv, norm, halving, x) is None) == (side == 18)
    with torch.autocast("cpu", torch.bfloat16):
        actual = run_fused(layers, x)
    d_out, parameters = torch.randn(actual.shape), list(layers.parameters())
    gradients = torch.autograd.grad(actual, parameters, d_out.to(actual.dtype))
    expected = torch.autograd.grad(layers(x), parameters, d_out)
    assert max(relative(a, b, 1e-9) for a, b in zip(gradients, expected, strict=True)) < 0.05


@pytest.mark.gpu
def test_a_stem_takes_the_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch):
    """Under autocast, with the bias of the halving convolution in the norm that follows; in float32 the layers run."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    calls: list[torch.Size] = []
    real = stem_gradients.stem
    monkeypatch.setattr(stem_gradients, "stem", lambda x, *layers: (calls.append(x.shape), real(x, *layers))[1])
    conv, norm, halving = stem_layers(3, "cuda")
    layers = nn.Sequential(conv, norm, nn.ReLU(), halving, nn.GroupNorm(32, 64).cuda(), nn.ReLU())
    x = torch.randn(4, 3, 32, 32, device="cuda")
    expected = run_fused(layers, x)
    assert not calls
    with torch.autocast("cuda", dtype=torch.bfloat16):
        actual = run_fused(layers, x)
    assert calls == [x.shape] and float((actual - expected).detach().norm() / expected.detach().norm()) < 0.03


def test_unsupported_stems_are_named(monkeypatch: pytest.MonkeyPatch):
    """Each reason says what is not supported."""
    conv, norm, halving, x = nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64), nn.Conv2d(64, 64, 4, 2, 1), torch.zeros(1, 3, 32, 32)
    assert "cpu" in str(stem_gradients.unsupported_reason(conv, norm, halving, x))
    emulate(monkeypatch)
    assert stem_gradients.unsupported_reason(conv, norm, halving, x) is None
    assert stem_gradients.unsupported_reason(conv, norm, halving, x[..., :18, :18]) is None
    for wrong, other, image, words in (
        (nn.Conv2d(31, 64, 1), halving, torch.zeros(1, 31, 16, 16), "shared memory"),
        (nn.Conv2d(4, 64, 2), halving, torch.zeros(1, 4, 31, 31), "room"),
        (conv, halving, x[..., :17, :17], "small"),
        (conv, nn.Conv2d(64, 64, 4), x, "stride 2"),
    ):
        assert words in str(stem_gradients.unsupported_reason(wrong, norm, other, image)), words
