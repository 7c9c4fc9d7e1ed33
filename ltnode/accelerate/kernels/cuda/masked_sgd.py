"""SGD on all parameters in one kernel, masked by a flag on the device; the same in torch is the reference and the fallback."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ltnode.accelerate.kernels import nvrtc
from ltnode.typing import Bool, Float, Tensor

_THREADS, _EACH = 256, 4
_ARRAYS = 100
"""Most parameters: their addresses travel with the launch, which holds 4 KB."""
Compiled = Callable[[torch.device], nvrtc.Kernels]


class _Arrays(ctypes.Structure):
    """``Arrays`` of masked_sgd.cu."""

    _fields_: ClassVar = [
        ("parameters", ctypes.c_void_p * _ARRAYS),
        ("gradients", ctypes.c_void_p * _ARRAYS),
        ("numbers", ctypes.c_int * _ARRAYS),
        ("flat", ctypes.c_int * _ARRAYS),
        ("blocks", ctypes.c_int * _ARRAYS),
    ]


@dataclass(frozen=True)
class Rule:
    """How a step is made.

    Attributes:
        rates: Learning rate of every number, the parameters one after the other.
        decays: Weight decay of every number.
        factor: Of the momentum.
        nesterov: Nesterov's variant.
    """

    rates: Float[Tensor, " n"]
    decays: Float[Tensor, " n"]
    factor: float
    nesterov: bool


def masked_sgd(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Float[Tensor, " n"],
    valid: Bool[Tensor, ""],
    rule: Rule,
) -> None:
    """Update parameters and their flat momentum in place. Where ``valid`` is false they stay what they are."""
    if momentum.is_cuda and len(parameters) <= _ARRAYS and all(map(_is_plain, parameters)) and nvrtc.why_unavailable() is None:
        launch_sgd(parameters, gradients, momentum, valid, rule, _compiled_for)
        return
    p, d = (torch.cat([each.reshape(-1) for each in tensors]) for tensors in (parameters, gradients))
    d += rule.decays * p
    new_momentum = rule.factor * momentum + d
    change = d + rule.factor * new_momentum if rule.nesterov else new_momentum
    updated = torch.where(valid, p - rule.rates * change, p)
    momentum.copy_(torch.where(valid, new_momentum, momentum))
    parts = updated.split([each.numel() for each in parameters])
    torch._foreach_copy_(list(parameters), [part.view_as(each) for part, each in zip(parts, parameters, strict=True)])


def launch_sgd(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], momentum: Tensor, valid: Tensor, rule: Rule, compiled: Compiled
) -> None:
    """`masked_sgd` by the kernel."""
    factors = [gradient.float().contiguous() for gradient in gradients]
    arrays, flat, blocks = _Arrays(), 0, 0
    for i, (p, gradient) in enumerate(zip(parameters, factors, strict=True)):
        blocks += -(-p.numel() // (_THREADS * _EACH))
        arrays.parameters[i], arrays.gradients[i] = p.data_ptr(), gradient.data_ptr()
        arrays.numbers[i], arrays.flat[i], arrays.blocks[i] = p.numel(), flat, blocks
        flat += p.numel()
    arguments: list[nvrtc.Argument] = [
        bytes(arrays),
        rule.rates,
        rule.decays,
        valid,
        float(rule.factor),
        int(rule.nesterov),
        momentum,
    ]
    compiled(momentum.device).launch("masked_sgd", blocks, _THREADS, 0, arguments)


def _is_plain(parameter: Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.is_contiguous()


def defines() -> tuple[tuple[str, int], ...]:
    """What the kernel is compiled for."""
    return ("ARRAYS", _ARRAYS), ("THREADS", _THREADS), ("EACH", _EACH)


def _compiled_for(device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("masked_sgd", defines(), device)
