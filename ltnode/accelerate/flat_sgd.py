"""SGD for captured steps: one update of all parameters of an optimiser, which a flag on the device can mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ltnode.accelerate.kernels.cuda.masked_sgd import FlatAverage, Rule, masked_sgd
from ltnode.models.averaging import WeightAverage
from ltnode.typing import Tensor


def unsupported_reason_flat(optimizer: torch.optim.Optimizer) -> str | None:
    """Explain why `FlatSGD` does not compute the update of an optimiser."""
    if type(optimizer) is not torch.optim.SGD:
        return f"it is {type(optimizer).__name__}"
    if any(group["dampening"] or group["maximize"] for group in optimizer.param_groups):
        return "it has dampening, or maximises"
    if len({(group["momentum"], group["nesterov"]) for group in optimizer.param_groups}) > 1:
        return "its parameter groups have different momentum"
    if any(p.dtype != torch.float32 for group in optimizer.param_groups for p in group["params"]):
        return "its parameters are not float32"
    return None


class FlatSGD:
    """SGD on the parameters of one optimiser, with an update that a flag on the device can mask.

    The optimiser's state holds views of the flat momentum buffer, so that checkpoints equal those of the eager step. The same
    holds for the average of the parameters, if there is one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> None:
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.parameters = [p for g in groups for p in g["params"]]
        sizes = [p.numel() for p in self.parameters]
        device = self.parameters[0].device
        self._momentum_factor, self._nesterov = groups[0]["momentum"], groups[0]["nesterov"]
        self._decay = torch.cat([torch.full((p.numel(),), float(g["weight_decay"])) for g in groups for p in g["params"]]).to(
            device
        )
        self._rates = torch.zeros(sum(sizes), device=device)
        self._momentum = torch.zeros(sum(sizes), device=device)
        for p, part in zip(self.parameters, self._momentum.split(sizes), strict=True):
            state = optimizer.state[p]
            if state.get("momentum_buffer") is not None:
                part.copy_(state["momentum_buffer"].reshape(-1))
            state["momentum_buffer"] = part.view_as(p)
        self._average = None if average is None else self._flat_average(average, sizes)
        self._group_rates: tuple[float, ...] = ()
        self.refresh_rates()

    def _flat_average(self, average: WeightAverage, sizes: list[int]) -> FlatAverage:
        """Move the sums of an average into one flat buffer, of which the average keeps views."""
        if [id(p) for p in average.parameters] != [id(p) for p in self.parameters]:
            raise ValueError("the average must be of the optimiser's parameters, in their order")
        flat = torch.cat([total.reshape(-1) for total in average.sums])
        average.sums = [part.view_as(p) for part, p in zip(flat.split(sizes), self.parameters, strict=True)]
        return FlatAverage(flat, average.count, 1 - average.decay)

    def refresh_rates(self) -> None:
        """Copy the learning rates of the parameter groups to the device if they have changed."""
        rates = tuple(float(g["lr"]) for g in self.optimizer.param_groups)
        if rates != self._group_rates:
            rows = [torch.full((p.numel(),), float(g["lr"])) for g in self.optimizer.param_groups for p in g["params"]]
            self._rates.copy_(torch.cat(rows))
            self._group_rates = rates

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], valid: Tensor) -> None:
        """Make one SGD step if ``valid`` holds; otherwise leave parameters, momentum and average unchanged."""
        rule = Rule(self._rates, self._decay, self._momentum_factor, self._nesterov)
        masked_sgd(self.parameters, gradients, self._momentum, valid, rule, self._average)

    def release(self) -> None:
        """Do nothing: the eager step takes the momentum as it is."""
