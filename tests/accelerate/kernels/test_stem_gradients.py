"""The gradients of a stem's first two convolutions in one kernel, against the two kernels with the array between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory, relative
from kernels.emulated import COMPILER, emulated_halving, emulated_patch_norm, emulated_stem
from ltnode.accelerate.kernels import norm_relu
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.hopper import halving_conv, stem_gradients


def stem_layers(channels: int, device: str) -> tuple[nn.Conv2d, nn.GroupNorm, nn.Conv2d]:
    """Scales of both signs, one of them zero and two so small that the shift decides."""
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
    """The same values, rounded in the same places: sums in float32 in another order leave 1e-5 of the gradients."""
    conv, norm, halving = stem_layers(channels, device)
    parameters = [*conv.parameters(), *norm.parameters(), halving.weight]
    x = torch.randn(batch, channels, side, side, device=device)
    fill_free_memory(device)
    got = stem_gradients.stem(x, conv, norm, halving)
    wanted = halving_conv.halving_conv(patch_norm.patch_norm(x, conv, norm), halving)
    assert got.shape == wanted.shape and torch.equal(got, wanted)
    given = torch.randn(got.shape, device=device).bfloat16()
    references = torch.autograd.grad(wanted, parameters, given)
    fill_free_memory(device)
    for name, a, b in zip(
        ("weight", "bias", "scale", "shift", "halving"), torch.autograd.grad(got, parameters, given), references, strict=True
    ):
        assert float((a - b).norm() / b.norm()) < 1e-5, name


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize(
    ("batch", "channels", "side"), [(1, 3, 32), pytest.param(6, 3, 32, marks=pytest.mark.slow), (1, 1, 28), (9, 2, 19)]
)
def test_the_kernel_as_cpp_equals_the_two(monkeypatch: pytest.MonkeyPatch, batch: int, channels: int, side: int):
    """CIFAR10's images, one and more than blocks; MNIST's; an odd side, and three images for a block."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    monkeypatch.setattr(halving_conv, "_compiled_for", emulated_halving)
    monkeypatch.setattr(stem_gradients, "_compiled_for", emulated_stem)
    check(batch, channels, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "channels", "side"), [(1, 3, 32), (256, 3, 32), (300, 1, 28), (133, 2, 19)])
def test_the_kernel_equals_the_two(batch: int, channels: int, side: int):
    """One image, fewer and more than there are multiprocessors, both sets' sizes and an odd one."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(batch, channels, side, "cuda")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize("side", [10, 17, 18])
def test_stems_of_small_images_have_the_gradients_of_their_layers(monkeypatch: pytest.MonkeyPatch, side: int):
    """Around the side from which one kernel makes both layers' gradients; factors in bfloat16, which rounds to 2^-9."""
    monkeypatch.setattr(patch_norm, "_compiled_for", emulated_patch_norm)
    monkeypatch.setattr(halving_conv, "_compiled_for", emulated_halving)
    monkeypatch.setattr(stem_gradients, "_compiled_for", emulated_stem)
    monkeypatch.setattr(patch_norm, "why_not", patch_norm.why_not_layers)  # whatever the device
    monkeypatch.setattr(halving_conv, "why_not", halving_conv.why_not_layer)
    one_kernel = stem_gradients.why_not(*stem_layers(3, "cpu"), torch.zeros(1, 3, side, side)) is None
    assert one_kernel == (side == 18)
    conv, norm, halving = stem_layers(3, "cpu")
    layers, x = nn.Sequential(conv, norm, nn.ReLU(), halving), torch.randn(3, 3, side, side).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        got = norm_relu.run_fused(layers, x)
    given, parameters = torch.randn(got.shape), list(layers.parameters())
    found = torch.autograd.grad(got, parameters, given.to(got.dtype))
    wanted = torch.autograd.grad(layers(x), parameters, given)
    assert max(relative(a, b, 1e-9) for a, b in zip(found, wanted, strict=True)) < 0.05


@pytest.mark.gpu
def test_a_stem_takes_the_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch):
    """Under autocast, with the halving convolution's bias in what follows; in float32 the layers run."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    calls: list[torch.Size] = []
    real = stem_gradients.stem
    monkeypatch.setattr(stem_gradients, "stem", lambda x, *layers: (calls.append(x.shape), real(x, *layers))[1])
    conv, norm, halving = stem_layers(3, "cuda")
    layers = nn.Sequential(conv, norm, nn.ReLU(), halving, nn.GroupNorm(32, 64).cuda(), nn.ReLU())
    x = torch.randn(4, 3, 32, 32, device="cuda")
    wanted = norm_relu.run_fused(layers, x)
    assert not calls
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = norm_relu.run_fused(layers, x)
    assert calls == [x.shape] and float((got - wanted).detach().norm() / wanted.detach().norm()) < 0.03


def test_other_layers_say_why_they_stay_apart():
    """Each reason names what is in the way."""
    between, halving = torch.zeros(1, 64, 30, 30), nn.Conv2d(64, 64, 4, 2, 1)
    assert stem_gradients.why_not_layers(nn.Conv2d(3, 64, 3), halving, between) is None
    assert "channels" in str(stem_gradients.why_not_layers(nn.Conv2d(31, 64, 1), halving, between))
    assert "room" in str(stem_gradients.why_not_layers(nn.Conv2d(4, 64, 2), halving, between))
    assert "small" in str(stem_gradients.why_not_layers(nn.Conv2d(3, 64, 3), halving, between[..., :15, :15]))
    assert stem_gradients.why_not_layers(nn.Conv2d(3, 64, 3), halving, between[..., :16, :16]) is None
    assert "stride 2" in str(stem_gradients.why_not_layers(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 4), between))
    conv, norm = nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64)
    assert "cpu" in str(stem_gradients.why_not(conv, norm, halving, torch.zeros(1, 3, 32, 32)))
