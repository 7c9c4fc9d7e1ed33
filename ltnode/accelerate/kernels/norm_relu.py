"""Autograd around the fused GroupNorm + ReLU (+ mean over positions), and a way to run a Sequential with it.

The reference is the same layers of `torch.nn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.hopper import halving_conv, stem_gradients
from ltnode.typing import Float, Tensor

_LARGEST_PART = 32768
"""Numbers of a sample that one program holds in the registers of at most 16 warps."""
_BACKWARD_TILE = 4096
"""Numbers that a program of the backward kernel works on at a time."""
_CUDA_BLOCK, _CUDA_POSITIONS = 16, 1024
"""Channels of a block and most positions of norm_relu.cu."""


def norm_relu(
    x: Float[Tensor, "N C H W"], norm: nn.GroupNorm, pool: bool = False, bias: Float[Tensor, " C"] | None = None
) -> Tensor:
    """``relu(norm(x + bias))`` in the dtype of x, channels last; with ``pool`` its mean over positions, (N, C) float32.

    Images too large for the registers, and norms without scale and shift or with a number of channels a group that is no
    power of two, go through the layers.
    """
    launches = _choose(x, norm, pool, bias)
    if launches is not None:
        return _NormRelu.apply(x, bias, norm.weight, norm.bias, norm.eps, pool, launches)
    shifted = x if bias is None else x + bias.to(x.dtype)[:, None, None]
    a = functional.relu(norm(shifted))
    return a.mean(dim=(2, 3), dtype=torch.float32) if pool else a.to(x.dtype)


def _choose(x: Tensor, norm: nn.GroupNorm, pool: bool, bias: Tensor | None) -> _Launches | None:
    """Which kernels run; None where the layers do."""
    block = _channel_block(norm, x.shape[2] * x.shape[3])
    if block is None:
        return None
    if not pool and _cuda_fits(x, norm, bias):
        kernels = _cuda_kernels(x, bias is not None)
        if kernels is not None:
            return _Cuda(kernels)
    return _Triton(block, norm.num_channels // norm.num_groups, pool, bias is not None)


def _channel_block(norm: nn.GroupNorm, positions: int) -> int | None:
    """Channels of a program: whole groups, and at least 16 where the registers hold them; None where the kernels do not fit."""
    per_group = norm.num_channels // norm.num_groups
    if not norm.affine or per_group & (per_group - 1):
        return None
    tile = power_of_two(positions)
    block = per_group
    while norm.num_channels % (2 * block) == 0 and (2 * block * tile <= _LARGEST_PART // 2 or block < 16) and block < 32:
        block *= 2
    return block if block * tile <= _LARGEST_PART else None


def power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << (n - 1).bit_length()


def _cuda_fits(x: Tensor, norm: nn.GroupNorm, bias: Tensor | None) -> bool:
    """Whether norm_relu.cu is written for this: bfloat16, two channels a group, parameters that are read four at a time."""
    parameters = [p for p in (norm.weight, norm.bias, bias) if p is not None]
    readable = all(p.dtype == torch.float32 and p.is_contiguous() and p.data_ptr() % 16 == 0 for p in parameters)
    paired = norm.num_channels == 2 * norm.num_groups and norm.num_channels % _CUDA_BLOCK == 0
    return x.dtype == torch.bfloat16 and paired and readable and x.shape[2] * x.shape[3] <= _CUDA_POSITIONS


def _cuda_kernels(x: Tensor, biased: bool) -> nvrtc.Kernels | None:
    """norm_relu.cu for these sizes; None where it cannot be compiled, and Triton serves."""
    if not x.is_cuda or nvrtc.why_unavailable() is not None or torch.cuda.get_device_capability(x.device) < (8, 0):
        return None
    return nvrtc.compiled("norm_relu", _cuda_sizes(x.shape[2] * x.shape[3], x.shape[1], biased), x.device)


def _cuda_threads(positions: int) -> int:
    """A quarter of them is the number of positions that a block reads at a time."""
    return 128 if positions <= 256 else 256


def _cuda_sizes(positions: int, channels: int, biased: bool) -> tuple[tuple[str, int], ...]:
    return (("THREADS", _cuda_threads(positions)), ("POSITIONS", positions), ("CHANNELS", channels), ("BIAS", int(biased)))


@runtime_checkable
class _Launches(Protocol):
    """The two kernels on arrays (N, H, W, C).

    ``given`` is x, bias, scale, shift, and backward also means and 1 / std (N, C) and the gradient; ``results`` are written to:
    the output, means and 1 / std, and backward the gradients of x and, per sample (N, 2 or 3, C), of scale, shift and bias.
    """

    def forward(self, given: Sequence[Tensor], results: Sequence[Tensor], eps: float) -> None: ...

    def backward(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None: ...


@dataclass(frozen=True)
class _Cuda:
    """Of norm_relu.cu."""

    kernels: nvrtc.Kernels

    def forward(self, given: Sequence[Tensor], results: Sequence[Tensor], eps: float) -> None:
        self._launch("norm_relu_forward", given[0].shape, [*given, float(eps), *results])

    def backward(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self._launch("norm_relu_backward", given[0].shape, [*given, *results])

    def _launch(self, name: str, shape: Sequence[int], arguments: Sequence[nvrtc.Argument]) -> None:
        samples, height, width, channels = shape
        threads = _cuda_threads(height * width)
        warps, sums = threads // 32, 3
        blocks, shared_bytes = samples * (channels // _CUDA_BLOCK), 4 * sums * warps * _CUDA_BLOCK
        self.kernels.launch(name, blocks, threads, shared_bytes, arguments, long=True)


@dataclass(frozen=True)
class _Triton:
    """Of norm_relu_triton.py, with so many channels a program."""

    block: int
    per_group: int
    pool: bool
    biased: bool

    def forward(self, given: Sequence[Tensor], results: Sequence[Tensor], eps: float) -> None:
        from ltnode.accelerate.kernels.triton.norm_relu import norm_relu_forward

        samples, height, width, channels = given[0].shape
        sizes = self._sizes(channels, power_of_two(height * width), per_thread=64)
        norm_relu_forward[(channels // self.block * samples,)](*given, *results, height * width, eps, **sizes)

    def backward(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        from ltnode.accelerate.kernels.triton.norm_relu import norm_relu_backward

        samples, height, width, channels = given[0].shape
        tile = min(power_of_two(height * width), max(_BACKWARD_TILE // self.block, 1))
        sizes = self._sizes(channels, tile, per_thread=16)
        norm_relu_backward[(channels // self.block * samples,)](*given, *results, height * width, **sizes)

    def _sizes(self, channels: int, tile: int, per_thread: int) -> dict[str, int | bool]:
        """What a kernel is compiled for, with so many numbers of its tile per thread."""
        kind = {"POOL": self.pool, "BIAS": self.biased, "CHANNELS": channels, "PER_GROUP": self.per_group}
        warps = min(max(tile * self.block // (32 * per_thread), 1), 16)
        return {**kind, "TILE": tile, "BLOCK": self.block, "num_warps": warps}


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor, eps: float, pool: bool, launches: _Launches
    ) -> Tensor:
        samples, channels, _, _ = x.shape
        rows = patch_norm.pixels(x.detach())
        out = torch.empty((samples, channels), device=x.device) if pool else torch.empty_like(rows)
        means = torch.empty((samples, channels), device=x.device)
        rstds = torch.empty_like(means)
        # Without a bias the kernel reads none; any tensor can stand in its place.
        given = (rows, (shift if bias is None else bias).detach(), scale.detach(), shift.detach())
        launches.forward(given, (out, means, rstds), eps)
        ctx.save_for_backward(*given, means, rstds)
        ctx.biased, ctx.pool, ctx.launches = bias is not None, pool, launches
        return out if pool else out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        rows = ctx.saved_tensors[0]
        d_rows = torch.empty_like(rows)
        d_affine = torch.empty((rows.shape[0], 3 if ctx.biased else 2, rows.shape[3]), device=rows.device)
        given = d_out.contiguous() if ctx.pool else patch_norm.pixels(d_out)
        ctx.launches.backward((*ctx.saved_tensors, given), (d_rows, d_affine))
        d_scale, d_shift, *d_bias = d_affine.sum(dim=0)
        return d_rows.permute(0, 3, 1, 2), d_bias[0] if ctx.biased else None, d_scale, d_shift, None, None, None


def run_fused(layers: nn.Sequential, x: Tensor) -> Tensor:
    """The Sequential on x, with GroupNorm-ReLU pairs, the bias before and the pooling after one, in fused kernels.

    A convolution's bias that no pair takes over is added in its own precision: under autocast that gives the cast for nothing.
    """
    modules = list(layers)
    bias: Tensor | None = None
    i = 0
    while i < len(modules):
        layer, following = modules[i], modules[i + 1 : i + 4]
        if isinstance(layer, nn.GroupNorm) and following and isinstance(following[0], nn.ReLU):
            pool = is_pooling(following[1:])
            x, bias = norm_relu(x, layer, pool, bias), None
            i += 4 if pool else 2
            continue
        if bias is not None:
            x, bias = x + bias[:, None, None], None
        first = _first_layers(modules[i : i + 5], x)
        if first is not None:
            halving = modules[i + 3] if i + 3 < len(modules) else None
            if isinstance(halving, nn.Conv2d) and stem_gradients.why_not(*first, halving, x) is None:
                x, bias = stem_gradients.stem(x, *first, halving), halving.bias
                i += 4
            else:
                x = patch_norm.patch_norm(x, *first)
                i += 3
            continue
        if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
            x, bias = _convolve(layer, x), layer.bias
        else:
            x = layer(x)
        i += 1
    return x if bias is None else x + bias[:, None, None]


def _first_layers(layers: list[nn.Module], x: Tensor) -> tuple[nn.Conv2d, nn.GroupNorm] | None:
    """Convolution and norm at the beginning where `patch_norm` can take them and a ReLU, and no pooling, follows."""
    if len(layers) < 3 or is_pooling(layers[3:]) or _product_dtype(layers[0], x) != torch.bfloat16:
        return None
    conv, norm, relu = layers[:3]
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.GroupNorm) or not isinstance(relu, nn.ReLU):
        return None
    return (conv, norm) if patch_norm.why_not(conv, norm, x) is None else None


def _product_dtype(layer: nn.Module, x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(layer.parameters(), x).dtype


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution without its bias; one copy brings each factor to autocast's precision and to channels last."""
    dtype = _product_dtype(layer, x)
    if dtype == torch.bfloat16 and halving_conv.why_not(layer, x) is None:
        return halving_conv.halving_conv(x, layer)
    weight, x = (factor.to(dtype=dtype, memory_format=torch.channels_last) for factor in (layer.weight, x))
    return functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)


def is_pooling(layers: list[nn.Module]) -> bool:
    """Whether these two layers take the mean over all positions, (N, C, H, W) to (N, C)."""
    if len(layers) != 2 or not isinstance(layers[0], nn.AdaptiveAvgPool2d) or not isinstance(layers[1], nn.Flatten):
        return False
    return layers[0].output_size in (1, (1, 1)) and (layers[1].start_dim, layers[1].end_dim) in ((1, -1), (1, 3))
