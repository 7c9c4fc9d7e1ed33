"""Updates inside captured steps: a flag on the device decides whether the optimiser's step counts.

Nothing can be decided on the host inside a CUDA graph, so a step whose error check fails must mask its own update. `FlatSGD` does
this for plain SGD in one kernel. `CapturedOptimizer` runs any optimiser of torch whose state can live on the device (its option
``capturable``) with its own code. The reference is ``optimizer.step()`` of the eager step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch

from ltnode.accelerate.flat_sgd import FlatSGD, unsupported_reason_flat
from ltnode.models.averaging import WeightAverage
from ltnode.typing import Bool, Float, Tensor

_MASKED_BY_TORCH = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimisers whose fused implementation skips an update, its count included, if ``found_inf`` is 1."""


@runtime_checkable
class CapturedUpdate(Protocol):
    """What a captured step needs of an optimiser.

    Attributes:
        parameters: All parameters, in the order of the gradients.
    """

    parameters: list[Tensor]

    def refresh_rates(self) -> None:
        """Copy the learning rates of the parameter groups to the device if they have changed."""

    def update(self, gradients: Sequence[Tensor], valid: Bool[Tensor, ""]) -> None:
        """Make one step if ``valid`` holds; otherwise leave parameters, state and average unchanged. Can be captured."""

    def release(self) -> None:
        """Leave the optimiser as the eager step expects it."""


def captured_update(optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> CapturedUpdate:
    """Return the update of an optimiser that `unsupported_reason_update` supports; its state must exist (see `has_state`)."""
    if unsupported_reason_flat(optimizer) is None:
        return FlatSGD(optimizer, average)
    return CapturedOptimizer(optimizer, average)


def unsupported_reason_update(optimizer: torch.optim.Optimizer) -> str | None:
    """Explain why the update of an optimiser cannot be captured."""
    name = type(optimizer).__name__
    if any("differentiable" in group and group["differentiable"] for group in optimizer.param_groups):
        return f"{name} was made with differentiable=True"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{name} has a step hook, which a CUDA graph would not call"
    if type(optimizer) is torch.optim.SGD or all("capturable" in group for group in optimizer.param_groups):
        return None
    return f"{name} has no option 'capturable': it decides on the host what it computes"


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a captured update can begin. Optimisers make their state in their first step, which therefore is an eager one."""
    if unsupported_reason_flat(optimizer) is None:
        return True
    stateless = type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups)
    return stateless or all(optimizer.state.get(p) for group in optimizer.param_groups for p in group["params"])


class CapturedOptimizer:
    """The step of an optimiser of torch, with its state and learning rates on the device.

    Only during `update` do the parameter groups hold learning rates on the device; before and after it they are the numbers that
    schedules expect. Counts of steps stay on the device until `release`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> None:
        self.optimizer, self._average = optimizer, average
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self.parameters[0].device
        self._rates: list[Float[Tensor, ""]] = [torch.zeros((), device=self._device) for _ in optimizer.param_groups]
        self._known_rates: list[float] | None = None
        self._masked_by_torch = type(optimizer) in _MASKED_BY_TORCH
        self._moved = self._on_the_cpu()
        for state, name in self._moved:
            state[name] = state[name].to(self._device)
        self.refresh_rates()

    def refresh_rates(self) -> None:
        """See `CapturedUpdate.refresh_rates`."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if rates != self._known_rates:
            for rate, value in zip(self._rates, rates, strict=True):
                rate.fill_(value)
            self._known_rates = rates

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], valid: Bool[Tensor, ""]) -> None:
        """See `CapturedUpdate.update`."""
        for p, gradient in zip(self.parameters, gradients, strict=True):
            # Fused updates go through the memory of both, as autograd's own accumulation of gradients makes them alike.
            p.grad = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
        with self._rates_on_device():
            if self._masked_by_torch:
                self._step_unless((~valid).to(torch.float32))
            else:
                self._step_and_take_back(valid)
        for p in self.parameters:
            p.grad = None
        if self._average is not None:
            self._average.update(valid)

    def release(self) -> None:
        """See `CapturedUpdate.release`."""
        for state, name in self._moved:
            state[name] = state[name].cpu()

    def _step_unless(self, found_inf: Float[Tensor, ""]) -> None:
        """Step unless the flag is 1, in the way in which gradient scaling tells an optimiser to skip a step."""
        scaled: Any = self.optimizer
        scaled.grad_scale, scaled.found_inf = None, found_inf
        try:
            self.optimizer.step()
        finally:
            del scaled.grad_scale, scaled.found_inf

    def _step_and_take_back(self, valid: Bool[Tensor, ""]) -> None:
        """Step, and restore parameters and state where the step does not count."""
        state = [value for p in self.parameters for value in self.optimizer.state[p].values() if isinstance(value, Tensor)]
        tensors = [*self.parameters, *state]
        before = [tensor.clone() for tensor in tensors]
        self.optimizer.step()
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(valid, tensor, old))

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Parameter groups in the form that can be captured; afterwards they are as the user made them."""
        groups = self.optimizer.param_groups
        options: dict[str, Any] = {}
        if self._masked_by_torch:
            options |= {"fused": True, "foreach": False}
        if "capturable" in groups[0] and self._device.type == "cuda":
            options["capturable"] = True
        saved = [{name: group[name] for name in ("lr", *options)} for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group.update(options, lr=rate)
        try:
            yield
        finally:
            for group, values in zip(groups, saved, strict=True):
                group.update(values)

    def _on_the_cpu(self) -> list[tuple[dict[str, Any], str]]:
        """Where the state has counts of steps and other numbers that torch keeps on the CPU unless an optimiser is capturable."""
        states = [(self.optimizer.state.get(p, {}), p) for p in self.parameters]
        return [
            (state, name)
            for state, p in states
            for name, value in state.items()
            if isinstance(value, Tensor) and value.device != p.device
        ]
