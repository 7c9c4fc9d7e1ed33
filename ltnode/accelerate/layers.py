"""Layers on images whose norms, ReLUs and some convolutions run in one kernel, where a captured training step asks for it.

Outside of `fused_layers`, on a CPU and for other inputs the layers themselves run: they are the reference.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn
from torch.nn import functional

from ltnode.accelerate.kernels.conv_trajectory import EPS, FieldTensors, ThreeNorms, field_evaluation
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.cuda.norm_relu import norm_relu
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.typing import Tensor


def why_no_fused_layers(device: torch.device) -> str | None:
    """Why there are none on this device; None where there are."""
    if device.type != "cuda":
        return f"the device is {device.type}"
    return None if find_spec("triton") is not None else "Triton is not installed"


def run_layers(layers: nn.Module, x: Tensor) -> Tensor:
    """The layers on a batch."""
    return run_fused(layers, x) if isinstance(layers, nn.Sequential) and _serve(x) else layers(x)


def relu_of_norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """``relu(norm(x))``."""
    return norm_relu(x, norm) if _serve(x) else functional.relu(norm(x))


def convolutions_between_norms(t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: ThreeNorms) -> Tensor | None:
    """Norm, ReLU, convolution of [t, .], twice, and the last norm, in one kernel for each direction; None where layers must run.

    Args:
        t: Time, 0-dim.
        h: (B, C, H, W).
        convs: 3 x 3 on C + 1 channels with a border of zeros.
        norms: Before, between and after them.
    """
    if not _serve(h) or t.ndim > 0 or not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return None
    layers = (*convs, *norms)
    if any(p.dtype != torch.float32 for layer in layers for p in layer.parameters()) or any(n.eps != EPS for n in norms):
        return None
    if conv_trajectory_cuda.unsupported_reason(h, norms[0].num_groups, "bf16") is not None:
        return None
    with torch.autocast("cuda", enabled=False):
        return field_evaluation(t, h, FieldTensors.of(convs, norms, h.shape[-1]), "bf16")


def _serve(x: Tensor) -> bool:
    # A compiled or exported program holds the layers: the question is for those that run.
    return not torch.compiler.is_compiling() and x.is_cuda and x.ndim == 4
