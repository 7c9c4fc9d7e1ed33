"""Counter-based random numbers: the same on every device, for any batching and any number of processes.

SplitMix64 (Steele, Lea and Flood, 2014) hashes (seed, step, call, row, sample index) to 64 bits in integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ltnode.typing import Float, Int, Tensor

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, the increment of SplitMix64."""
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FEW = 64
"""Up to this many numbers, Python integers are faster than tensor operations."""


def hash_counters(*counters: int) -> int:
    """Hash a few integers to a 64-bit word."""
    word = 0
    for counter in counters:
        word = split_mix_int((word ^ (counter % WORD)) % WORD)
    return word


def hash_indices(key: int | Tensor, indices: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Hash each index with a key from `hash_counters` to a 64-bit word, stored as int64."""
    return split_mix(indices.to(torch.int64) ^ (key if isinstance(key, torch.Tensor) else as_int64(key)))


def to_unit(words: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert words to uniform float64 numbers in [0, 1), using the upper 53 bits."""
    return _shift(words, 11).to(torch.float64) * 2.0**-53


@dataclass
class CounterGenerator:
    """Generator of uniform numbers that depend only on (seed, step) and, for columns, on the sample index.

    Attributes:
        seed: Seed of the run.
        step: Training step; with a range of steps, every draw has one row per step.
        indices: Positions of the samples in the training set, (B,); None if nothing is per sample.
        keys: Result of `keys_of` for seed and step, on the device. A captured graph reads the keys of the current step there.
    """

    seed: int
    step: int | range
    indices: Tensor | None = None
    keys: Int[Tensor, "calls 2"] | None = None
    _calls: int = field(default=0)

    @staticmethod
    def keys_of(seed: int, step: int, calls: int) -> Int[Tensor, "calls 2"]:
        """Row and column keys of the first calls of `uniform`."""
        rows = [hash_counters(seed, step, call + 1) for call in range(calls)]
        return torch.tensor([[as_int64(key), as_int64(hash_counters(key, 1))] for key in rows])

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw float64 numbers in [0, 1) of shape (n,), or (n, B) with one column per sample; each call gives new numbers."""
        self._calls += 1
        if isinstance(self.step, range):
            if len(shape) == 1:
                keys = [as_int64(hash_counters(self.seed, step, self._calls)) for step in self.step]
                return to_unit(split_mix(torch.arange(shape[0], device=device) ^ torch.tensor(keys, device=device)[:, None]))
            of_steps = (CounterGenerator(self.seed, step, self.indices, None, self._calls - 1) for step in self.step)
            return torch.stack([one.uniform(shape, device) for one in of_steps])
        row_key = hash_counters(self.seed, self.step, self._calls)
        if self.keys is None and len(shape) == 1 and shape[0] <= _FEW and device.type == "cpu":
            return torch.tensor([(split_mix_int(row ^ row_key) >> 11) * 2.0**-53 for row in range(shape[0])], dtype=torch.float64)
        # Rows and columns need different keys, or the numbers at (r, c) and (c, r) would be equal.
        row_and_column: Sequence[int | Tensor] = (row_key, hash_counters(row_key, 1))
        if self.keys is not None:
            row_and_column = self.keys[self._calls - 1].unbind()
        words = hash_indices(row_and_column[0], torch.arange(shape[0], device=device))
        if len(shape) == 1:
            return to_unit(words)
        columns = torch.arange(shape[1], device=device) if self.indices is None else self.indices.to(device)
        return to_unit(split_mix(words[:, None] ^ hash_indices(row_and_column[1], columns)[None, :]))


def split_mix_int(z: int) -> int:
    """The output function of SplitMix64 for a Python integer: advance the state z and mix its bits."""
    z = (z + GOLDEN) % WORD
    z = ((z ^ (z >> 30)) * _MIX[0]) % WORD
    z = ((z ^ (z >> 27)) * _MIX[1]) % WORD
    return z ^ (z >> 31)


def split_mix(z: Tensor) -> Tensor:
    """`split_mix_int` for int64 tensors, whose arithmetic wraps modulo 2^64."""
    z = z + as_int64(GOLDEN)
    z = (z ^ _shift(z, 30)) * as_int64(_MIX[0])
    z = (z ^ _shift(z, 27)) * as_int64(_MIX[1])
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical (zero-filling) right shift of an int64 tensor."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def as_int64(word: int) -> int:
    """The signed integer with the bits of a 64-bit word."""
    return word - WORD if word >= WORD // 2 else word
