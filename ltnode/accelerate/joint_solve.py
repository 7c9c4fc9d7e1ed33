"""One solve for several networks that have the same prediction grid.

The states of all networks form one batch (M * B, ...), network by network. The error is checked for every network and input
separately, and only those that fail are solved again on a finer grid, as if each network were solved alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ltnode.accelerate.joint_fields import joint_field
from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode import Stats, odesolve_on_prediction_grid
from ltnode.ode.step import Field
from ltnode.typing import Float, Tensor

_CPU_BATCH = 64
"""Largest batch of vectors that is solved together on a CPU, where that saves up to a third of the time. Larger batches and
images gain nothing, because the fields themselves take the time, and the states of one network fit better into the cache."""


def faster_together(x: Tensor) -> bool:
    """Whether one solve of several networks is faster for inputs than one solve after the other."""
    return x.is_cuda or (x.ndim == 2 and len(x) <= _CPU_BATCH)


def solve_together(
    networks: Sequence[LatentTimeODE], x: Tensor, times: Sequence[Float[Tensor, "_n *_batch"]]
) -> tuple[list[Tensor], Stats]:
    """Solve for all networks at once on their common prediction grid.

    Args:
        networks: Networks for which `ltnode.models.shared_grid.same_grid` holds.
        x: Network inputs (B, ...).
        times: End-times of every network, (S,) or (S, B), not necessarily as many for each.

    Returns:
        The states (S, B, ...) of every network, and the work; an evaluation of all fields counts once per network.
    """
    o, count, batch = networks[0].solver, len(networks), x.shape[0]
    joint = _Joint(networks, x)
    solution = odesolve_on_prediction_grid(
        joint.field(None),
        joint.start,
        _common_times(times, batch),
        networks[0].grid,
        o.rtol,
        o.atol,
        o.method,
        field_of=joint.field,
    )
    work = solution.stats
    stats = replace(work, n_accepted=count * work.n_accepted, n_evaluations=count * work.n_evaluations)
    states = solution.states.split(batch, dim=1)
    return [part[: len(own)] for part, own in zip(states, times, strict=True)], stats


def _common_times(times: Sequence[Tensor], batch: int) -> Tensor:
    """Times (S,) if all networks have the same, else (S, M * B); networks with fewer times than others repeat their last."""
    if all(own.ndim == 1 and torch.equal(own, times[0]) for own in times):
        return times[0]
    most = max(len(own) for own in times)
    padded = [torch.cat([own, own[-1:].expand(most - len(own), *own.shape[1:])]) for own in times]
    return torch.cat([own if own.ndim == 2 else own[:, None].expand(-1, batch) for own in padded], dim=1)


class _Joint:
    """Initial states of all networks as one batch, and the fields of any part of it."""

    def __init__(self, networks: Sequence[LatentTimeODE], x: Tensor) -> None:
        self._fields: list[nn.Module] = [network.field for network in networks]
        self._at_once = joint_field(self._fields)
        self._batch = x.shape[0]
        self.start = torch.cat([network.initial_state(x) for network in networks])

    def field(self, samples: Tensor | None) -> Field:
        """Return the field of the samples at ascending positions; None for all of them."""
        count, batch = len(self._fields), self._batch
        complete = samples is None or len(samples) == count * batch
        sizes = [batch] * count if samples is None or complete else _sizes(samples // batch, count)

        def joint(t: Tensor, y: Tensor) -> Tensor:
            if complete and t.ndim == 0:
                return self._at_once(t, y.unflatten(0, (count, batch))).flatten(0, 1)
            moments = [t] * count if t.ndim == 0 else t.split(sizes)
            parts = zip(self._fields, moments, y.split(sizes), strict=True)
            return torch.cat([field(moment, part) for field, moment, part in parts if len(part)])

        return joint


def _sizes(owners: Tensor, count: int) -> list[int]:
    sizes: list[int] = torch.bincount(owners, minlength=count).tolist()
    return sizes
