"""The model inside of an estimator: one network, or an ensemble of networks that are trained together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from ltnode.models import Ensemble, LatentTimeODE

TableModel = LatentTimeODE | Ensemble

END_TIMES: Mapping[str, str] = {
    "gamma": "lt-node",
    "amortized": "alt-node",
    "mixture": "lt-node-mixture",
    "uniform": "uni-node",
    "fixed": "node",
}
"""Values of ``end_time``, and the models of `ltnode.build` that they stand for."""


def networks_of(model: TableModel) -> list[LatentTimeODE]:
    """The networks of a model."""
    if isinstance(model, Ensemble):
        return [cast(LatentTimeODE, network) for network in model.networks]
    return [model]


def balanced_samples(model: TableModel, samples: int) -> int:
    """The number of end-times of a prediction, rounded up so that every network has the same number of them."""
    count = len(networks_of(model))
    return count * -(-samples // count)


@torch.no_grad()
def copy_to_varying_(varying: TableModel, constant: TableModel) -> None:
    """Give a model with varying noise the weights of one with constant noise; both then predict the same."""
    for new, old in zip(networks_of(varying), networks_of(constant), strict=True):
        state, own = old.state_dict(), new.state_dict()
        for name in ("head.weight", "head.bias"):
            rows = len(state[name])
            state[name] = torch.cat([state[name], torch.zeros_like(own[name][rows:])])
        new.load_state_dict(state)
