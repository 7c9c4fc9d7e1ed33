"""One prediction grid for several networks, so that they can be solved together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode import fit_prediction_grid
from ltnode.typing import Tensor

_CALIBRATION_SAMPLES = 512


def same_states(networks: Sequence[LatentTimeODE]) -> bool:
    """Whether the networks have states of the same shape, and solve with the same method, tolerances and window."""
    first, *others = [(_how(network), _shapes(network)) for network in networks]
    return all(other == first for other in others)


def same_grid(networks: Sequence[LatentTimeODE]) -> bool:
    """Whether the networks have the same states and the same prediction grid."""
    return same_states(networks) and all(torch.equal(network.grid, networks[0].grid) for network in networks[1:])


@torch.no_grad()
def fit_shared_grid(networks: Sequence[LatentTimeODE], x: Tensor) -> None:
    """Fit one prediction grid on training inputs, on which 95 % of the solves of all networks meet the tolerance."""
    o, count = networks[0].solver, len(networks)
    y0 = torch.cat([network.initial_state(x[:_CALIBRATION_SAMPLES]) for network in networks])

    def joint(t: Tensor, y: Tensor) -> Tensor:
        return torch.cat([network.field(t, part) for network, part in zip(networks, y.chunk(count), strict=True)])

    grid = fit_prediction_grid(joint, y0, float(networks[0].end_time.window[1]), o.rtol, o.atol, o.method)
    for network in networks:
        network.grid = grid.to(y0.device)


def _how(network: LatentTimeODE) -> tuple[object, ...]:
    o = network.solver
    return o.method, o.rtol, o.atol, network.augment, tuple(network.end_time.window)


def _shapes(network: LatentTimeODE) -> list[tuple[str, torch.Size]]:
    parts = (("stem", network.stem), ("field", network.field))
    return [(f"{part}.{name}", value.shape) for part, module in parts for name, value in module.state_dict().items()]
