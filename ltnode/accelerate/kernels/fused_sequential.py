"""Run an `nn.Sequential` on images with its layers mapped to fused kernels; the layers themselves are the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.cuda.norm_relu import norm_relu
from ltnode.accelerate.kernels.hopper import halving_conv, stem_gradients
from ltnode.typing import Tensor


def run_fused(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Return ``layers(x)``. Norms with a ReLU, the bias before them and the first convolutions of a stem are fused.

    Convolutions run without their bias. A norm that follows takes it over; otherwise it is added in its own precision, which
    under autocast saves a cast.
    """
    modules = list(layers)
    bias: Tensor | None = None
    i = 0
    while i < len(modules):
        layer, following = modules[i], modules[i + 1 : i + 4]
        if isinstance(layer, nn.GroupNorm) and following and isinstance(following[0], nn.ReLU):
            pool = is_pooling(following[1:])
            if pool:  # the mean over positions needs activations that are not rounded
                x = norm_relu(x.to(torch.promote_types(x.dtype, torch.float32)), layer, bias).mean(dim=(2, 3))
            else:
                x = norm_relu(x, layer, bias)
            bias = None
            i += 4 if pool else 2
            continue
        if bias is not None:
            x, bias = x + bias[:, None, None], None
        first = _first_layers(modules[i : i + 5], x)
        if first is not None:
            halving = modules[i + 3] if i + 3 < len(modules) else None
            if isinstance(halving, nn.Conv2d) and stem_gradients.unsupported_reason(*first, halving, x) is None:
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


def is_pooling(layers: list[nn.Module]) -> bool:
    """Return whether two layers take the mean over all positions, (N, C, H, W) to (N, C)."""
    if len(layers) != 2 or not isinstance(layers[0], nn.AdaptiveAvgPool2d) or not isinstance(layers[1], nn.Flatten):
        return False
    return layers[0].output_size in (1, (1, 1)) and (layers[1].start_dim, layers[1].end_dim) in ((1, -1), (1, 3))


def _first_layers(layers: list[nn.Module], x: Tensor) -> tuple[nn.Conv2d, nn.GroupNorm] | None:
    """Return the convolution and the norm at the start if `patch_norm` supports them and a ReLU without pooling follows."""
    if len(layers) < 3 or is_pooling(layers[3:]) or _product_dtype(layers[0], x) != torch.bfloat16:
        return None
    conv, norm, relu = layers[:3]
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.GroupNorm) or not isinstance(relu, nn.ReLU):
        return None
    return (conv, norm) if patch_norm.unsupported_reason(conv, norm, x) is None else None


def _product_dtype(layer: nn.Module, x: Tensor) -> torch.dtype:
    """Return the dtype in which a layer multiplies: that of autocast, or of its parameters."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(layer.parameters(), x).dtype


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve without the bias. One copy converts each operand to the product's dtype and to channels last."""
    dtype = _product_dtype(layer, x)
    if dtype == torch.bfloat16 and halving_conv.unsupported_reason(layer, x) is None:
        return halving_conv.halving_conv(x, layer)
    weight, x = (operand.to(dtype=dtype, memory_format=torch.channels_last) for operand in (layer.weight, x))
    return functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
