"""SGD of a captured step: all parameters of an optimiser in one update that a flag on the device can mask."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from ltnode.accelerate.kernels.cuda.masked_sgd import Rule, masked_sgd
from ltnode.typing import Tensor


@dataclass
class FlatSGD:
    """SGD on the parameters of one optimiser, with the update masked by a device flag.

    The momentum is the optimiser's own: its state holds views of the flat buffer, so checkpoints are those of the eager step.
    """

    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.optimizer.param_groups
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
            state = self.optimizer.state[p]
            if state.get("momentum_buffer") is not None:
                part.copy_(state["momentum_buffer"].reshape(-1))
            state["momentum_buffer"] = part.view_as(p)
        self._known: tuple[float, ...] = ()
        self.refresh_rates()

    def refresh_rates(self) -> None:
        """Take over the groups' learning rates; does nothing while they stay."""
        rates = tuple(float(g["lr"]) for g in self.optimizer.param_groups)
        if rates != self._known:
            numbers = [torch.full((p.numel(),), float(g["lr"])) for g in self.optimizer.param_groups for p in g["params"]]
            self._rates.copy_(torch.cat(numbers))
            self._known = rates

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...], valid: Tensor) -> None:
        """One step where ``valid`` holds; parameters and momentum stay as they are where it does not."""
        rule = Rule(self._rates, self._decay, self._momentum_factor, self._nesterov)
        masked_sgd(self.parameters, gradients, self._momentum, valid, rule)
