"""Features of the path h(t) of a solve: its states at fixed times, reduced to vectors of bounded size.

A prediction solves the ODE up to its latest end-time anyway; the states at the fixed times come from the dense output of the
same solve. They do not depend on the end-times of the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

from ltnode.typing import Float, Tensor

N_TIMES = 7
"""Number of fixed times, equally spaced from 0 to the end of the window."""
_DENSITY_TIMES = (0, 1, 3, 6)
"""Positions of the times that the density of pooled states uses; more of them detect little more and cost memory."""
_LARGEST_WIDTH = 512
_SMALL_STATE = 128
"""Largest number of elements of a state that is not pooled."""
_GROUPS = 32


@dataclass(frozen=True, eq=False)
class PathFeatures:
    """The path of a batch.

    Attributes:
        states: States at all fixed times, pooled over their positions; those of a prediction may be at the density's times only.
        shape: Pooled ReLU of the normalised states at the density's times; None for states without positions. The mean of a
            state over its positions does not show how values are distributed over them; this does.
        energy: ``-logsumexp`` of the logits at the last fixed time, larger = less familiar; None for regression.
    """

    states: Float[Tensor, "K B F"]
    shape: Float[Tensor, "k B F"] | None
    energy: Float[Tensor, " B"] | None

    def vector(self) -> Float[Tensor, "B D"]:
        """Return what the density uses as one vector per input: all states of vectors, or some pooled states and shapes."""
        if self.shape is None:
            return _flat(self.states)
        return _flat(torch.cat([_at_density_times(self.states), self.shape]))

    @classmethod
    def cat(cls, parts: Sequence[PathFeatures]) -> PathFeatures:
        """Concatenate the features of several batches."""
        shapes = [part.shape for part in parts if part.shape is not None]
        energies = [part.energy for part in parts if part.energy is not None]
        return cls(
            torch.cat([part.states for part in parts], dim=1),
            torch.cat(shapes, dim=1) if shapes else None,
            torch.cat(energies) if energies else None,
        )


def path_times(
    window_end: float, device: torch.device, density_only: bool = False, dtype: torch.dtype = torch.float64
) -> Float[Tensor, " K"]:
    """Return the fixed times; nobody may change them.

    Args:
        window_end: End of the window.
        device: Device of the times.
        density_only: Only those at which the density of pooled states needs them.
        dtype: What the times, computed in float64, are rounded to.
    """
    compute = _path_times.__wrapped__ if torch.compiler.is_compiling() else _path_times
    return compute(window_end, device, density_only, dtype)


@cache
def _path_times(window_end: float, device: torch.device, density_only: bool, dtype: torch.dtype) -> Float[Tensor, " K"]:
    with torch.inference_mode(False):
        times = torch.linspace(0.0, window_end, N_TIMES, dtype=torch.float64, device=device)
        return (_at_density_times(times) if density_only else times).to(dtype)


def n_path_times(density_only: bool) -> int:
    """Return the number of fixed times, or of those at which the density of pooled states needs them."""
    return len(_DENSITY_TIMES) if density_only else N_TIMES


def path_features(states: Float[Tensor, "K B *state"], last_logits: Float[Tensor, "B C"] | None) -> PathFeatures:
    """Return the features of states at the fixed times.

    Vectors and small states stay as they are. States (B, C, ...) with positions, such as images, are averaged over them.
    Sequences (B, L, C) are averaged over either axis, because neither is known to be the one of positions.

    Args:
        states: States at the fixed times.
        last_logits: Logits at the last of them; None for regression.
    """
    energy = None if last_logits is None else -torch.logsumexp(last_logits, dim=-1)
    if states.ndim <= 3 or states[0, 0].numel() <= _SMALL_STATE:
        return PathFeatures(_bounded(states.flatten(2)), None, energy)
    if states.ndim == 4:
        return PathFeatures(_bounded(torch.cat([states.mean(dim=2), states.mean(dim=3)], dim=2)), None, energy)
    positions = states.flatten(3)
    return PathFeatures(_bounded(positions.mean(dim=3)), _bounded(_normalised_relu(_at_density_times(positions))), energy)


def _at_density_times(values: Float[Tensor, "K *rest"]) -> Float[Tensor, "k *rest"]:
    if values.shape[0] == len(_DENSITY_TIMES):
        return values
    # Not by a list of positions, which would be copied to the device.
    return torch.stack([values[m] for m in _DENSITY_TIMES])


def _normalised_relu(positions: Float[Tensor, "k B C P"]) -> Float[Tensor, "k B C"]:
    """Compute the mean over all positions of the ReLU of states that are normalised per group of channels."""
    times, batch, channels, _ = positions.shape
    normed = torch.group_norm(positions.flatten(0, 1), _groups(channels))
    return normed.relu_().mean(dim=2).reshape(times, batch, channels)


@cache
def _groups(channels: int) -> int:
    return max(n for n in range(1, _GROUPS + 1) if channels % n == 0)


def _bounded(features: Float[Tensor, "K B F"]) -> Float[Tensor, "K B D"]:
    """Reduce wide features to a bounded number: each is added, with a random sign, to one of as many sums (a count sketch)."""
    width = features.shape[2]
    if width <= _LARGEST_WIDTH:
        return features
    kept = features.is_cuda and not torch.compiler.is_compiling()
    signs = _signs_on(features.device, width, features.dtype) if kept else _signs(width).to(features)
    signed = functional.pad(features * signs, (0, -width % _LARGEST_WIDTH))
    return signed.unflatten(2, (-1, _LARGEST_WIDTH)).sum(dim=2)


@cache
def _signs(width: int) -> Float[Tensor, " F"]:
    return torch.randint(2, (width,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0


@cache  # a captured program must not copy from the host
def _signs_on(device: torch.device, width: int, dtype: torch.dtype) -> Float[Tensor, " F"]:
    with torch.inference_mode(False):
        return _signs(width).to(device, dtype)


def _flat(features: Float[Tensor, "K B F"]) -> Float[Tensor, "B D"]:
    return features.transpose(0, 1).flatten(1)
