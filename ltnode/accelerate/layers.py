"""Layers on images in fused kernels; on a CPU and for other inputs the layers themselves run, which are the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ltnode.accelerate.kernels.conv_trajectory import EPS, FieldTensors, ThreeNorms, field_evaluation
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.cuda.norm_relu import norm_relu
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.typing import Tensor


def run_layers(layers: nn.Module, x: Tensor) -> Tensor:
    """Apply layers to a batch, with fused norms, ReLUs and convolutions where they are supported."""
    return run_fused(layers, x) if isinstance(layers, nn.Sequential) and _supports(x) else layers(x)


def relu_of_norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Compute ``relu(norm(x))``."""
    return norm_relu(x, norm) if _supports(x) else functional.relu(norm(x))


def convolutions_between_norms(t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: ThreeNorms) -> Tensor | None:
    """Apply norm, ReLU and convolution of [t, .] twice, then a norm, in one kernel per direction; None if not supported.

    Args:
        t: Time, 0-dim.
        h: State (B, C, H, W).
        convs: 3 x 3 convolutions of C + 1 channels with zero padding.
        norms: The norms before, between and after them.
    """
    in_bf16 = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    if not _supports(h) or t.ndim > 0 or not in_bf16:
        return None
    layers = (*convs, *norms)
    if any(p.dtype != torch.float32 for layer in layers for p in layer.parameters()) or any(n.eps != EPS for n in norms):
        return None
    if conv_trajectory_cuda.unsupported_reason(h, norms[0].num_groups, "bf16") is not None:
        return None
    with torch.autocast("cuda", enabled=False):
        return field_evaluation(t, h, FieldTensors.of(convs, norms, h.shape[-1]), "bf16")


def _supports(x: Tensor) -> bool:
    # A compiled or exported program must contain the layers themselves.
    return not torch.compiler.is_compiling() and x.is_cuda and x.ndim == 4
