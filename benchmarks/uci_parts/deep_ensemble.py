"""Deep ensembles of Lakshminarayanan et al. (2017): networks that learn mean and variance, without adversarial training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

Array = NDArray[Any]
MEMBERS = 5
WIDTH = 50
BATCH = 100
LEARNING_RATE = 0.01
EPOCHS, STEPS = 40, 2000
"""At least so many epochs, and at least so many steps; the weights are those of the epoch with the best held-out likelihood."""
LEAST_VARIANCE = 1e-6


class Networks(nn.Module):
    """All members at once: one hidden layer, ReLU; (B, D) to means and variances (MEMBERS, B), as batched products."""

    def __init__(self, columns: int, generator: torch.Generator) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int) -> tuple[nn.Parameter, nn.Parameter]:
            bound = 1 / math.sqrt(inputs)
            weight = torch.empty(MEMBERS, inputs, outputs).uniform_(-bound, bound, generator=generator)
            return nn.Parameter(weight), nn.Parameter(torch.zeros(MEMBERS, 1, outputs))

        self.first, self.first_bias = layer(columns, WIDTH)
        self.last, self.last_bias = layer(WIDTH, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(torch.baddbmm(self.first_bias, x.expand(MEMBERS, *x.shape[-2:]), self.first))
        mean, raw = torch.baddbmm(self.last_bias, hidden, self.last).unbind(-1)
        return mean, nn.functional.softplus(raw) + LEAST_VARIANCE


def mixture(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the equal mixture of the members."""
    return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)


def nll(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Mean negative log-likelihood without its constant."""
    return 0.5 * (variance.log() + (target - mean).square() / variance).mean()


def fit(x: Array, z: Array, seed: int) -> Networks:
    """Train on standardised rows and targets, of which 15 % choose the epoch; each member has its own order of the rows."""
    kept, held, z_kept, z_held = (
        torch.tensor(part, dtype=torch.float32) for part in train_test_split(x, z, test_size=0.15, random_state=seed)
    )
    generator = torch.Generator().manual_seed(seed)
    networks = Networks(x.shape[1], generator)
    optimiser = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE)
    best, chosen = math.inf, networks.state_dict()
    for _ in range(max(EPOCHS, math.ceil(STEPS / math.ceil(len(kept) / BATCH)))):
        orders = torch.stack([torch.randperm(len(kept), generator=generator) for _ in range(MEMBERS)])
        for rows in orders.split(BATCH, dim=1):
            optimiser.zero_grad()
            nll(*networks(kept[rows]), z_kept[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            score = float(nll(*mixture(*networks(held)), z_held))
        if score < best:
            best, chosen = score, {name: value.clone() for name, value in networks.state_dict().items()}
    networks.load_state_dict(chosen)
    return networks


@torch.no_grad()
def predict(networks: Networks, x: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of standardised rows."""
    mean, variance = mixture(*(part.double() for part in networks(torch.tensor(x, dtype=torch.float32))))
    return mean.numpy(), np.sqrt(variance.numpy())
