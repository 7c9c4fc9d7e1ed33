"""What can be accelerated for a model on a device, and the reason where something cannot.

`plan_step` answers for training steps. Every ``unsupported_reason...`` function returns a sentence for logs and errors, or None
when the faster way supports the case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from ltnode.accelerate.captured_update import unsupported_reason_update
from ltnode.accelerate.compiled import has_dropout, unsupported_reason_compile
from ltnode.accelerate.kernels.conv_trajectory import EPS
from ltnode.errors import ConfigError
from ltnode.models import Model
from ltnode.models.end_time_model import EndTimeModel
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.step import Optimizers
from ltnode.ode.replay import traced
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Tensor

Accelerate = Literal["auto", "off", "graph", "compiled", "fused"]
"""Requested acceleration: the fastest supported, none, at most a captured step, one whose layers are compiled from the start, or
one with fused kernels."""

_LARGEST_TILE = 64


@dataclass(frozen=True)
class Plan:
    """How training steps are computed.

    Attributes:
        mode: ``"eager"``, ``"captured"`` (one CUDA graph per step), ``"compiled"`` (one with compiled layers), or ``"fused"``
            (one with fused kernels).
        reason: Why no faster mode is used; None for the fastest.
        compile: When the layers of a captured step are compiled.
    """

    mode: Literal["eager", "captured", "compiled", "fused"]
    reason: str | None = None
    compile: Literal["never", "later", "now"] = "never"

    def __str__(self) -> str:
        text = {
            "eager": "training runs eagerly",
            "captured": "training steps are captured as CUDA graphs without fused kernels",
            "compiled": "training steps are captured as CUDA graphs, and their layers are compiled",
            "fused": "training steps are captured as CUDA graphs with fused kernels",
        }[self.mode]
        if self.compile == "later":
            text += " if the training lasts long enough to gain from it"
        return text if self.reason is None else f"{text}: {self.reason}"


def plan_step(
    model: Model,
    optimizers: Optimizers,
    device: torch.device,
    example: Tensor,
    requested: Accelerate = "auto",
    shared_batch: bool = False,
) -> Plan:
    """Plan the training steps of a model for inputs like ``example``; ``shared_batch`` if several processes share every batch.

    Raises:
        ConfigError: The requested acceleration is not supported; the message says why.
    """
    if requested == "off":
        return Plan("eager", "accelerate = 'off'")
    reason = unsupported_reason_capture(model, optimizers, device, shared_batch)
    if reason is not None:
        if requested != "auto":
            raise unsupported_request(requested, reason)
        return Plan("eager", reason)
    if requested == "graph":
        return Plan("captured", "accelerate = 'graph'")
    reason = unsupported_reason_fused_step(model, example, device)
    if reason is None and requested != "compiled":
        return Plan("fused")
    if reason is not None and requested == "fused":
        raise unsupported_request(requested, reason)
    not_compiled = _unsupported_reason_compiled_step(model)
    if not_compiled is None:
        return Plan("compiled", reason, "now" if requested == "compiled" else "later")
    if requested == "compiled":
        raise unsupported_request(requested, not_compiled)
    return Plan("captured", f"{reason}; the layers are not compiled, because {not_compiled}")


def unsupported_request(requested: str, reason: str) -> ConfigError:
    """Make the error for a requested acceleration that is not supported."""
    return ConfigError(f"accelerate = {requested!r} is not possible: {reason}; use 'auto' or 'off'")


def unsupported_reason_capture(
    model: Model, optimizers: Optimizers, device: torch.device, shared_batch: bool = False
) -> str | None:
    """Explain why training steps of this model cannot be captured as CUDA graphs."""
    if device.type != "cuda":
        return f"the device is {device.type}, and CUDA graphs need CUDA"
    if isinstance(model, EndTimeModel):
        if model.solving_network.solver.training == "fixed":
            return "fixed steps have no error check"
    elif not model.fixed_operations:
        return f"{type(model).__name__} decides on the host what it computes"
    for optimizer in optimizers.values():
        reason = unsupported_reason_update(optimizer)
        if reason is not None:
            return reason
    if shared_batch:
        return "several processes share every batch"
    if isinstance(model, EndTimeModel) and has_dropout(model.solving_network.field):
        return "the field has dropout, and the error of a random field says nothing about the step"
    return None


def _unsupported_reason_compiled_step(model: Model) -> str | None:
    """Explain why the layers of captured steps of this model cannot be compiled."""
    if not isinstance(model, EndTimeModel):
        return f"{type(model).__name__} has no solve whose steps could be compiled"
    network = model.solving_network
    return unsupported_reason_compile(network, get_tableau(network.solver.method))


@cache
def unsupported_reason_device(device: torch.device) -> str | None:
    """Explain why a device cannot run the fused kernels."""
    if device.type != "cuda":
        return f"the device is {device.type}, and the fused kernels need CUDA"
    return None if find_spec("triton") is not None else "Triton is not installed"


def unsupported_reason_fused_step(model: Model, example: Tensor, device: torch.device) -> str | None:
    """Explain why captured steps of this model cannot use fused kernels on such inputs."""
    if not isinstance(model, EndTimeModel):
        return unsupported_reason_device(device) if example.ndim == 4 else "the fused kernels need inputs that are images"
    network = model.solving_network
    reason = unsupported_reason_field(network.field, get_tableau(network.solver.method))
    if reason is not None:
        return reason
    if network.augment or not isinstance(network.stem, nn.Sequential) or not isinstance(network.head, nn.Sequential):
        return "stem and head must be Sequential, without augmented channels"
    other = next((p.dtype for p in network.parameters() if p.dtype != torch.float32), None)
    if other is not None:
        return f"a parameter is {other}, and the kernels need float32"
    with torch.no_grad():
        state = network.initial_state(example[:1])
    return unsupported_reason_state(state, network.field) or unsupported_reason_device(device)


def unsupported_reason_fused_solve(field: nn.Module, h: Tensor, times: Tensor, tableau: ButcherTableau) -> str | None:
    """Explain why the fused trajectory cannot replay this solve; reads no value of a tensor."""
    reason = unsupported_reason_device(h.device) or unsupported_reason_field(field, tableau)
    if reason is not None:
        return reason
    if any(p.dtype != torch.float32 or p.device != h.device for p in field.parameters()):
        return f"the kernels need the field's parameters in float32 on {h.device}"
    if times.requires_grad:
        return "the end-times require a gradient"
    if traced(h) or traced(times):
        return "the solve is compiled, transformed or captured"
    return unsupported_reason_state(h, field)


def unsupported_reason_field(field: nn.Module, tableau: ButcherTableau) -> str | None:
    """Explain why the fused trajectory cannot evaluate this field with this method."""
    if type(field) is not ConvField:  # a subclass may compute something else
        return f"the field is a {type(field).__name__}, and the fused trajectory is written for ConvField"
    width, modules = field.norm1.num_channels, list(field.modules())
    if width < 32 or width & (width - 1):
        return f"the field has {width} channels, and the kernels need a power of two from 32"
    if any(module.eps != EPS for module in modules if isinstance(module, nn.GroupNorm)):
        return f"a norm of the field has another eps than the {EPS:g} of the kernels"
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules):
        return "the field has a hook, and the kernels do not call its layers"
    return _unsupported_reason_method(tableau)


def unsupported_reason_state(h: Tensor, field: nn.Module) -> str | None:
    """Explain why the fused trajectory of a `ConvField` cannot start from states (B, C, H, W) like this one."""
    assert isinstance(field, ConvField)
    shape, width = h.shape, field.norm1.num_channels
    if len(shape) != 4 or shape[1] != width or shape[2] != shape[3] or shape[2] * shape[3] > _LARGEST_TILE:
        return f"the state has shape {tuple(shape)}, and the kernels need a square of at most {_LARGEST_TILE} positions"
    return None


def unsupported_reason_joint_batches(model: LatentTimeODE) -> str | None:
    """Explain why several batches of this model cannot be predicted in one solve with adaptive steps."""
    if model.task != "classification" or type(model.field) is not ConvField:  # another field may couple its inputs
        return f"the model is for {model.task} with a {type(model.field).__name__}, not for classification with a ConvField"
    return _unsupported_reason_method(get_tableau(model.solver.method))


def _unsupported_reason_method(tableau: ButcherTableau) -> str | None:
    if tableau.fsal and tableau.adaptive:
        return None
    return f"method {tableau.name!r} does not end its steps with the field at the new state, or has no error estimate"
