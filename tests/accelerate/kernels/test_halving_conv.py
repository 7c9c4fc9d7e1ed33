"""The convolution that halves images, against the layer in float64; the CUDA source runs as C++ on a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory
from kernels.emulated import COMPILER, emulated_halving
from ltnode.accelerate.kernels import norm_relu
from ltnode.accelerate.kernels.hopper import halving_conv


def layer(device: str) -> nn.Conv2d:
    """With weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 4, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(conv.weight.bfloat16())
    return conv.to(device)


def check(batch: int, side: int, device: str) -> None:
    """Output and gradient of x are the float64 values rounded once; sums of 1024 products in float32 leave less than that.

    The weight's gradient is torch's in bfloat16, which rounds its result and on a CPU its partial sums: 2^-7.
    """
    conv = layer(device)
    x = torch.randn(batch, 64, side, side, device=device).bfloat16().requires_grad_()
    fill_free_memory(device)
    got = halving_conv.halving_conv(x, conv)
    assert got.dtype == torch.bfloat16 and got.is_contiguous(memory_format=torch.channels_last)
    given = torch.randn(got.shape, device=device).bfloat16()
    d_x, d_weight = torch.autograd.grad(got, (x, conv.weight), given)
    assert d_x.dtype == torch.bfloat16 and d_weight.dtype == torch.float32
    exact_x, exact_weight = x.detach().double().requires_grad_(), conv.weight.detach().double().requires_grad_()
    wanted = torch.nn.functional.conv2d(exact_x, exact_weight, None, 2, 1)
    wanted_x, wanted_weight = torch.autograd.grad(wanted, (exact_x, exact_weight), given.double())
    for a, b in ((got.detach(), wanted.detach()), (d_x, wanted_x)):
        assert float(((a.double() - b).abs() / (b.abs() + 1e-3 * b.abs().max())).max()) < 2.0**-8
    assert float((d_weight.double() - wanted_weight).norm() / wanted_weight.norm()) < 2.0**-7


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize(
    ("batch", "side"),
    [
        (3, 30),
        pytest.param(1, 26, marks=pytest.mark.slow),
        (1, 16),
        pytest.param(7, 29, marks=pytest.mark.slow),
        (11, 15),
        (2, 13),
        (1, 8),
    ],
)
def test_kernels_as_cpp_equal_the_layer(monkeypatch: pytest.MonkeyPatch, batch: int, side: int):
    """CIFAR10's and MNIST's sizes, the smallest, and an odd one; one image, as many as blocks, and several for each.

    Of small images a block takes two at a time, of which the second may be missing.
    """
    monkeypatch.setattr(halving_conv, "_compiled_for", emulated_halving)
    check(batch, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "side"), [(1, 30), (256, 30), (300, 26), (7, 17), (133, 29), (256, 15), (301, 13), (1, 8)])
def test_kernels_equal_the_layer(batch: int, side: int):
    """One image, fewer and more than there are multiprocessors, even and odd sides."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(batch, side, "cuda")


@pytest.mark.gpu
def test_a_kernel_starts_from_a_thread_without_a_context():
    """As the autograd engine's threads are before their first kernel by torch."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    weight, packed = layer("cuda").weight.detach(), torch.zeros(2 * 16 * 64 * 64, device="cuda", dtype=torch.bfloat16)
    kernels = halving_conv._compiled_for(30, weight.device)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        arguments = [weight, weight.stride(0), weight.stride(1), packed]
        pool.submit(kernels.launch, "pack_kernel", 256, 256, 0, arguments).result()
    # Forward and backward hold the same values in other places.
    assert torch.equal(packed[: len(packed) // 2].sort().values, weight.bfloat16().flatten().sort().values)


@pytest.mark.parametrize(
    ("conv", "side", "reason"),
    [
        (nn.Conv2d(64, 64, 4, 2, 1), 7, "squares"),
        (nn.Conv2d(64, 64, 4, 2, 1), 31, "squares"),
        (nn.Conv2d(64, 32, 4, 2, 1), 30, "64 channels"),
        (nn.Conv2d(64, 64, 4, 2, 1, groups=2), 30, "one group"),
        (nn.Conv2d(64, 64, 4, 2, 1, padding_mode="circular"), 30, "zeros"),
        (nn.Conv2d(64, 64, 3, 2, 1), 30, "4 x 4"),
        (nn.Conv2d(64, 64, 4, 1, 1), 30, "stride 2"),
        (nn.Conv2d(64, 64, 4, 2, 1).bfloat16(), 30, "float32"),
    ],
)
def test_what_the_kernels_are_not_written_for_goes_elsewhere(conv: nn.Conv2d, side: int, reason: str):
    """Each of them would compute something else; the reason names it."""
    assert reason in str(halving_conv.why_not_layer(conv, torch.zeros(1, 64, side, side)))
    assert halving_conv.why_not_layer(nn.Conv2d(64, 64, 4, 2, 1), torch.zeros(1, 64, 30, 30)) is None
    assert "cpu" in str(halving_conv.why_not(conv, torch.zeros(1, 64, side, side)))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
def test_layers_run_in_the_kernels_under_autocast(monkeypatch: pytest.MonkeyPatch):
    """The fused Sequential takes them in bfloat16 alone, and adds the bias; the convolution's result is rounded before that."""
    used = []
    monkeypatch.setattr(halving_conv, "_compiled_for", lambda *given: used.append(given) or emulated_halving(*given))
    monkeypatch.setattr(halving_conv, "why_not", halving_conv.why_not_layer)
    conv, x = layer("cpu"), torch.randn(1, 64, 16, 16)
    wanted = nn.functional.conv2d(x.bfloat16().double(), conv.weight.detach().double(), conv.bias.detach().double(), 2, 1)
    assert norm_relu.run_fused(nn.Sequential(conv), x).dtype == torch.float32 and not used
    with torch.autocast("cpu", torch.bfloat16):
        got = norm_relu.run_fused(nn.Sequential(conv), x)
    assert used and float((got.detach().double() - wanted).abs().max()) < 2.0**-7 * float(wanted.abs().max())
