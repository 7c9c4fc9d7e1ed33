"""SGD on flat arrays in one kernel, masked by a flag on the device; the same in torch is the reference and the fallback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ltnode.kernels import nvrtc
from ltnode.typing import Bool, Float, Tensor

_THREADS = 256
Compiled = Callable[[torch.device], nvrtc.Kernels]


@dataclass(frozen=True)
class Rule:
    """How a step is made.

    Attributes:
        rates: Learning rate of every number.
        decays: Weight decay of every number.
        factor: Of the momentum.
        nesterov: Nesterov's variant.
    """

    rates: Float[Tensor, " n"]
    decays: Float[Tensor, " n"]
    factor: float
    nesterov: bool


def masked_sgd(
    parameters: Float[Tensor, " n"],
    gradients: Float[Tensor, " n"],
    momentum: Float[Tensor, " n"],
    valid: Bool[Tensor, ""],
    rule: Rule,
) -> Float[Tensor, " n"]:
    """The updated parameters; the momentum is updated in place. Where ``valid`` is false both are what they were."""
    if parameters.is_cuda and parameters.dtype == torch.float32 and nvrtc.why_unavailable() is None:
        return launch_sgd(parameters, gradients, momentum, valid, rule, _compiled_for)
    d = gradients + rule.decays * parameters
    new_momentum = rule.factor * momentum + d
    change = d + rule.factor * new_momentum if rule.nesterov else new_momentum
    updated = torch.where(valid, parameters - rule.rates * change, parameters)
    momentum.copy_(torch.where(valid, new_momentum, momentum))
    return updated


def launch_sgd(
    parameters: Tensor, gradients: Tensor, momentum: Tensor, valid: Tensor, rule: Rule, compiled: Compiled
) -> Float[Tensor, " n"]:
    """`masked_sgd` by the kernel."""
    updated = torch.empty_like(parameters)
    count = parameters.numel()
    arguments: list[nvrtc.Argument] = [parameters, gradients, rule.rates, rule.decays, valid]
    arguments += [float(rule.factor), int(rule.nesterov), count, momentum, updated]
    compiled(parameters.device).launch("masked_sgd", -(-count // _THREADS), _THREADS, 0, arguments)
    return updated


def _compiled_for(device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("masked_sgd", (), device)
