"""The parameters of several networks of equal architecture in one array, arranged so that a step has few products.

The networks have a linear stem ``y = W0 x + b0``, the field ``k = W3 tanh(W2 tanh(W1 h + w t + b1) + b2) + b3`` and a linear head
``V h + v``. Blocks hold what is multiplied together:

    L = [W0 b0],  A = [W1; V],  a = [b1; v],  B = [W3 b3],  w,  W2,  b2

and every other parameter is a block of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ltnode.models import LatentTimeODE

FIRST, SECOND, THIRD = "field.layers.0", "field.layers.2", "field.layers.4"
"""Names of the linear layers of the field."""
Array = NDArray[np.float32]
_Part = slice | int | EllipsisType
_Index = _Part | tuple[_Part, ...]


@dataclass(frozen=True)
class Place:
    """Where a part of a parameter is stored: ``parameter[part]`` is ``blocks[block][k, *where]`` for network k."""

    parameter: str
    part: _Index
    block: str
    where: tuple[_Part, ...]


class StackedParameters:
    """The parameters of K networks as a float32 array (K, P), which an update changes as a whole.

    Args:
        networks: Networks of equal architecture; `load` and `store` copy their values.

    Attributes:
        flat, flat_gradient: All parameters, one row per network, and their gradients.
        values, gradients: The blocks of both by name, as views (K, *shape).
        places: Where the parts of all parameters are.
    """

    def __init__(self, networks: Sequence[LatentTimeODE]) -> None:
        self.networks = list(networks)
        self.places, shapes = _arranged(networks[0])
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
        self.flat, self.flat_gradient = (np.zeros((len(networks), ends[-1]), dtype=np.float32) for _ in range(2))
        self.values, self.gradients = (
            {
                name: flat[:, end - math.prod(shape) : end].reshape(len(flat), *shape)
                for (name, shape), end in zip(shapes.items(), ends, strict=True)
            }
            for flat in (self.flat, self.flat_gradient)
        )
        self._copied = self._copies()
        self.load()

    @torch.no_grad()
    def load(self) -> None:
        """Copy the parameters of the networks into the stacked ones."""
        for own, part, stacked in self._copied:
            stacked[...] = own.numpy(force=True)[part]

    @torch.no_grad()
    def store(self) -> None:
        """Copy the stacked parameters back into the networks."""
        for own, part, stacked in self._copied:
            own.detach().numpy()[part] = stacked

    def _copies(self) -> list[tuple[nn.Parameter, _Index, Array]]:
        """The parameters of all networks, the parts of them that are copied, and the views of the stacked parameters."""
        found: list[tuple[nn.Parameter, _Index, Array]] = []
        for k, network in enumerate(self.networks):
            own = dict(network.named_parameters())
            for place in self.places:
                where = place.where if ... in place.where else (*place.where, ...)  # a view, even of a single number
                found.append((own[place.parameter], place.part, self.values[place.block][(k, *where)]))
        return found


def _arranged(network: LatentTimeODE) -> tuple[list[Place], dict[str, tuple[int, ...]]]:
    """Places of the parts of all parameters, and shapes of the blocks."""
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    (n, features), (h1, _), (_, h2), (outputs, _) = (shapes[f"{x}.weight"] for x in ("stem", FIRST, THIRD, "head"))
    every, last, others = slice(None), (..., -1), (..., slice(None, -1))
    upper, lower = (slice(None, h1),), (slice(h1, None),)
    places = [
        Place("stem.weight", ..., "L", others),
        Place("stem.bias", ..., "L", last),
        Place(f"{FIRST}.weight", (every, 0), "w", ()),
        Place(f"{FIRST}.weight", (every, slice(1, None)), "A", upper),
        Place(f"{FIRST}.bias", ..., "a", upper),
        Place(f"{SECOND}.weight", ..., "W2", ()),
        Place(f"{SECOND}.bias", ..., "b2", ()),
        Place(f"{THIRD}.weight", ..., "B", others),
        Place(f"{THIRD}.bias", ..., "B", last),
        Place("head.weight", ..., "A", lower),
        Place("head.bias", ..., "a", lower),
    ]
    named = {place.parameter for place in places}
    others_too = [Place(name, ..., name, ()) for name in shapes if name not in named]
    blocks = {
        "L": (n, features + 1),
        "w": (h1,),
        "A": (h1 + outputs, n),
        "a": (h1 + outputs,),
        "B": (n, h2 + 1),
        "W2": (h2, h1),
        "b2": (h2,),
    }
    return [*places, *others_too], blocks | {place.block: shapes[place.block] for place in others_too}


@dataclass(frozen=True)
class Blocks:
    """The blocks of the layers, or their gradients, with one entry per network; see the beginning of this file.

    Attributes:
        L: (K, n, D + 1).
        w: (K, h1).
        A: (K, h1 + C, n).
        a: (K, h1 + C).
        B: (K, n, h2 + 1).
        W2: (K, h2, h1).
        b2: (K, h2).
    """

    L: Array
    w: Array
    A: Array
    a: Array
    B: Array
    W2: Array
    b2: Array
