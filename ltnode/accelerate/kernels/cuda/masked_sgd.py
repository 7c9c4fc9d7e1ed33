"""SGD on all parameters in one kernel, masked by a flag on the device: the launch of masked_sgd.cu, or the same in torch.

The torch version is the reference and serves where the kernel cannot.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.devices import Argument, Defines
from ltnode.typing import Bool, Float, Int, Tensor

_THREADS, _ELEMENTS_PER_THREAD = 256, 4
_MAX_ARRAYS = 100
"""Largest number of parameters: their addresses travel in the arguments of the launch, which hold 4 KB."""


class _Arrays(ctypes.Structure):
    """``Arrays`` of masked_sgd.cu."""

    _fields_: ClassVar = [
        ("parameters", ctypes.c_void_p * _MAX_ARRAYS),
        ("gradients", ctypes.c_void_p * _MAX_ARRAYS),
        ("sizes", ctypes.c_int * _MAX_ARRAYS),
        ("offsets", ctypes.c_int * _MAX_ARRAYS),
        ("block_ends", ctypes.c_int * _MAX_ARRAYS),
    ]


@dataclass(frozen=True)
class Rule:
    """Hyperparameters of a step, for all elements of the parameters one after the other.

    Attributes:
        rates: Learning rate of every element.
        decays: Weight decay of every element.
        factor: Momentum factor.
        nesterov: Whether to use Nesterov momentum.
    """

    rates: Float[Tensor, " n"]
    decays: Float[Tensor, " n"]
    factor: float
    nesterov: bool


@dataclass(frozen=True)
class FlatAverage:
    """The moving average of the parameters, for all elements one after the other; see `ltnode.models.averaging`.

    Attributes:
        sums: The sums, which the step updates.
        count: The number of updates, which the step increases.
        share: Weight of the new parameters, 1 - decay.
    """

    sums: Float[Tensor, " n"]
    count: Int[Tensor, ""]
    share: float


def unsupported_reason(parameters: Sequence[Tensor]) -> str | None:
    """Return why the kernel cannot update these parameters, or None."""
    if len(parameters) > _MAX_ARRAYS:
        return f"there are {len(parameters)} parameters, and a launch holds {_MAX_ARRAYS}"
    if any(p.dtype != torch.float32 or not p.is_contiguous() for p in parameters):
        return "the parameters must be float32 and contiguous"
    return devices.unsupported_reason(parameters[0].device)


def masked_sgd(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Float[Tensor, " n"],
    valid: Bool[Tensor, ""],
    rule: Rule,
    average: FlatAverage | None = None,
) -> None:
    """Update parameters, their flat momentum and average in place if ``valid`` is true; otherwise leave all unchanged."""
    if unsupported_reason(parameters) is None:
        _launch(parameters, gradients, momentum, valid, rule, average)
        return
    p, d = (torch.cat([each.reshape(-1) for each in tensors]) for tensors in (parameters, gradients))
    d += rule.decays * p
    new_momentum = rule.factor * momentum + d
    change = d + rule.factor * new_momentum if rule.nesterov else new_momentum
    updated = torch.where(valid, p - rule.rates * change, p)
    momentum.copy_(torch.where(valid, new_momentum, momentum))
    if average is not None:
        average.sums.lerp_(updated.to(average.sums), valid.to(average.sums) * average.share)
        average.count.add_(valid)
    parts = updated.split([each.numel() for each in parameters])
    torch._foreach_copy_(list(parameters), [part.view_as(each) for part, each in zip(parts, parameters, strict=True)])


def _launch(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Tensor,
    valid: Tensor,
    rule: Rule,
    average: FlatAverage | None,
) -> None:
    contiguous = [gradient.float().contiguous() for gradient in gradients]
    arrays, offset, blocks = _Arrays(), 0, 0
    for i, (p, gradient) in enumerate(zip(parameters, contiguous, strict=True)):
        blocks += -(-p.numel() // (_THREADS * _ELEMENTS_PER_THREAD))
        arrays.parameters[i], arrays.gradients[i] = p.data_ptr(), gradient.data_ptr()
        arrays.sizes[i], arrays.offsets[i], arrays.block_ends[i] = p.numel(), offset, blocks
        offset += p.numel()
    arguments: list[Argument] = [bytes(arrays), rule.rates, rule.decays, valid, float(rule.factor), int(rule.nesterov), momentum]
    # Without an average, the kernel has no code that uses its address.
    arguments += [0.0, momentum, momentum] if average is None else [float(average.share), average.sums, average.count]
    sizes = (("ARRAYS", _MAX_ARRAYS), ("THREADS", _THREADS), ("EACH", _ELEMENTS_PER_THREAD))
    defines: Defines = (*sizes, ("AVERAGED", int(average is not None)))
    devices.compiled("masked_sgd", defines, momentum.device).launch("masked_sgd", blocks, _THREADS, 0, arguments)
