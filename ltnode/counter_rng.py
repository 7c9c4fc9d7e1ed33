"""Random numbers as a function of counters: the same on every device, in any batch and for any number of processes.

SplitMix64 (Steele, Lea and Flood, 2014) hashes (seed, step, call, row, sample index) to 64 bits in integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ltnode.typing import Float, Int, Tensor

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio: the increment of SplitMix64."""
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FEW = 64
"""Numbers up to which Python's integers are faster than tensors."""


def hash_counters(*counters: int) -> int:
    """A 64-bit word from a few integers."""
    word = 0
    for counter in counters:
        word = split_mix_int((word ^ (counter % WORD)) % WORD)
    return word


def hash_indices(key: int | Tensor, indices: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A 64-bit word per index under a key from `hash_counters`, as int64 (the sign is just another bit)."""
    return split_mix(indices.to(torch.int64) ^ (key if isinstance(key, torch.Tensor) else as_int64(key)))


def to_unit(words: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Uniform float64 numbers in [0, 1) from the upper 53 bits."""
    return _shift(words, 11).to(torch.float64) * 2.0**-53


@dataclass
class CounterGenerator:
    """Source of uniform numbers that depends on (seed, step) and, for columns, on the sample index alone.

    Attributes:
        seed: Of the run.
        step: Of the training; with a range of steps every draw has a row for each of them.
        indices: (B,) the samples' positions in the training set; None where nothing is per sample.
        keys: What `keys_of` gives for seed and step, on the device: a captured program reads them there, whatever the step.
    """

    seed: int
    step: int | range
    indices: Tensor | None = None
    keys: Int[Tensor, "calls 2"] | None = None
    _calls: int = field(default=0)

    @staticmethod
    def keys_of(seed: int, step: int, calls: int) -> Int[Tensor, "calls 2"]:
        """Keys of rows and of columns for the first calls of `uniform`."""
        rows = [hash_counters(seed, step, call + 1) for call in range(calls)]
        return torch.tensor([[as_int64(key), as_int64(hash_counters(key, 1))] for key in rows])

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Numbers in [0, 1), float64: (n,) by row, or (n, B) by row and sample index. Every call gives new ones."""
        self._calls += 1
        if isinstance(self.step, range):
            of_steps = (CounterGenerator(self.seed, step, self.indices, None, self._calls - 1) for step in self.step)
            return torch.stack([one.uniform(shape, device) for one in of_steps])
        row_key = hash_counters(self.seed, self.step, self._calls)
        if self.keys is None and len(shape) == 1 and shape[0] <= _FEW and device.type == "cpu":
            # For a handful of numbers Python's integers are faster than sixty tensor operations.
            return torch.tensor([(split_mix_int(row ^ row_key) >> 11) * 2.0**-53 for row in range(shape[0])], dtype=torch.float64)
        # A key of their own: rows and columns hashed alike would give the same number at (r, c) and (c, r).
        keys: Sequence[int | Tensor] = (row_key, hash_counters(row_key, 1))
        if self.keys is not None:
            keys = self.keys[self._calls - 1].unbind()
        words = hash_indices(keys[0], torch.arange(shape[0], device=device))
        if len(shape) == 1:
            return to_unit(words)
        columns = torch.arange(shape[1], device=device) if self.indices is None else self.indices.to(device)
        return to_unit(split_mix(words[:, None] ^ hash_indices(keys[1], columns)[None, :]))


def split_mix_int(z: int) -> int:
    """SplitMix64's output function on a Python integer: the number behind z in its sequence, mixed."""
    z = (z + GOLDEN) % WORD
    z = ((z ^ (z >> 30)) * _MIX[0]) % WORD
    z = ((z ^ (z >> 27)) * _MIX[1]) % WORD
    return z ^ (z >> 31)


def split_mix(z: Tensor) -> Tensor:
    """The same finaliser on int64 tensors, whose products wrap modulo 2^64."""
    z = z + as_int64(GOLDEN)
    z = (z ^ _shift(z, 30)) * as_int64(_MIX[0])
    z = (z ^ _shift(z, 27)) * as_int64(_MIX[1])
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical (zero-filling) right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def as_int64(word: int) -> int:
    """A 64-bit word as the signed number with the same bits."""
    return word - WORD if word >= WORD // 2 else word
