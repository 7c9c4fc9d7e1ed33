"""The convolution that halves images, on CUDA and emulated, against the layer in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.accelerate.kernels.hopper import halving_conv


def layer(device: str) -> nn.Conv2d:
    """Return a layer whose weights are exact in bfloat16."""
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 4, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(conv.weight.bfloat16())
    return conv.to(device)


def check(batch: int, side: int, device: str) -> None:
    """Output and gradient of x are the float64 values rounded once; float32 sums of 1024 products leave less than that.

    Torch computes the weight gradient in bfloat16 and rounds its result and, on a CPU, its partial sums: 2^-7.
    """
    conv = layer(device)
    x = torch.randn(batch, 64, side, side, device=device).bfloat16().requires_grad_()
    fill_free_memory(device)
    actual = halving_conv.halving_conv(x, conv)
    assert actual.dtype == torch.bfloat16 and actual.is_contiguous(memory_format=torch.channels_last)
    d_out = torch.randn(actual.shape, device=device).bfloat16()
    d_x, d_weight = torch.autograd.grad(actual, (x, conv.weight), d_out)
    assert d_x.dtype == torch.bfloat16 and d_weight.dtype == torch.float32
    exact_x, exact_weight = x.detach().double().requires_grad_(), conv.weight.detach().double().requires_grad_()
    expected = torch.nn.functional.conv2d(exact_x, exact_weight, None, 2, 1)
    expected_x, expected_weight = torch.autograd.grad(expected, (exact_x, exact_weight), d_out.double())
    for a, b in ((actual.detach(), expected.detach()), (d_x, expected_x)):
        assert float(((a.double() - b).abs() / (b.abs() + 1e-3 * b.abs().max())).max()) < 2.0**-8
    assert float((d_weight.double() - expected_weight).norm() / expected_weight.norm()) < 2.0**-7


@needs_compiler
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
def test_emulated_kernels_equal_the_layer(monkeypatch: pytest.MonkeyPatch, batch: int, side: int):
    """The sizes of CIFAR10 and MNIST, the smallest and an odd one; one image, as many as blocks, and several per block.

    A block handles two small images at a time, of which the second may be missing.
    """
    emulate(monkeypatch)
    check(batch, side, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "side"), [(1, 30), (256, 30), (300, 26), (7, 17), (133, 29), (256, 15), (301, 13), (1, 8)])
def test_kernels_equal_the_layer(batch: int, side: int):
    """One image, fewer and more images than multiprocessors, even and odd sides."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    check(batch, side, "cuda")


@pytest.mark.gpu
def test_a_kernel_starts_from_a_thread_without_a_context():
    """Threads of the autograd engine have no CUDA context before torch's first kernel there."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    weight, packed = layer("cuda").weight.detach(), torch.zeros(2 * 16 * 64 * 64, device="cuda", dtype=torch.bfloat16)
    module = halving_conv._compiled(30, weight.device)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        arguments = [weight, weight.stride(0), weight.stride(1), packed]
        pool.submit(module.launch, "pack_weights", 256, 256, 0, arguments).result()
    # The layouts of both directions hold the same values in different orders.
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
def test_unsupported_layers_are_named(monkeypatch: pytest.MonkeyPatch, conv: nn.Conv2d, side: int, reason: str):
    """The kernels would compute something else; the reason says what is not supported."""
    supported, x = (nn.Conv2d(64, 64, 4, 2, 1), torch.zeros(1, 64, 30, 30))
    assert "cpu" in str(halving_conv.unsupported_reason(supported, x))
    emulate(monkeypatch)
    assert reason in str(halving_conv.unsupported_reason(conv, torch.zeros(1, 64, side, side)))
    assert halving_conv.unsupported_reason(supported, x) is None
    emulate(monkeypatch, capability=(10, 0))
    assert "wgmma" in str(halving_conv.unsupported_reason(supported, x))


@needs_compiler
def test_layers_run_in_the_kernels_under_autocast(monkeypatch: pytest.MonkeyPatch):
    """The fused Sequential uses them in bfloat16 only, and adds the bias to the rounded result of the convolution."""
    emulate(monkeypatch)
    calls = []
    kernel = halving_conv.halving_conv
    monkeypatch.setattr(halving_conv, "halving_conv", lambda *given: calls.append(given) or kernel(*given))
    conv, x = layer("cpu"), torch.randn(1, 64, 16, 16)
    expected = nn.functional.conv2d(x.bfloat16().double(), conv.weight.detach().double(), conv.bias.detach().double(), 2, 1)
    assert run_fused(nn.Sequential(conv), x).dtype == torch.float32 and not calls
    with torch.autocast("cpu", torch.bfloat16):
        actual = run_fused(nn.Sequential(conv), x)
    assert calls and float((actual.detach().double() - expected).abs().max()) < 2.0**-7 * float(expected.abs().max())
