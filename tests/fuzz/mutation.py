"""Mutations of bytes and of JSON values: every input is a function of a corpus and a random generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\x1b[31m", "\ud800", [], {}, [[]], [None], {"": None}, 0, -1, 1, 0.5, -0.0, 1e308, -1e308),
    *(float("nan"), float("inf"), 10**9, 10**30, 10**400, "NaN", "1e999", "../../etc/passwd", "a" * 1000, list(range(50))),
)


def mutated_bytes(data: bytes, corpus: Sequence[bytes], rng: random.Random, most: int = 1 << 16) -> bytes:
    """Change a few places: flip, set, insert, remove, repeat, splice with another entry, cut."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(changed) + 1)
        size = min(rng.choice((1, 2, 4, 8, 64, 512)), len(changed) - at)
        match rng.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16)))
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size] * rng.choice((1, 2, 16))
            case 5:
                number, width = rng.choice(_NUMBERS), rng.choice((1, 2, 4, 8))
                order = rng.choice(("little", "big"))
                changed[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)
            case 6:
                other = rng.choice(corpus)
                start = rng.randrange(len(other) + 1)
                changed[at : at + size] = other[start : start + rng.choice((4, 32, 256, 4096))]
            case _:
                del changed[at:]
        if not changed:
            changed = bytearray(rng.choice(corpus))
    return bytes(changed[:most])


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """Replace, remove or add values at random places of a JSON document."""
    value = copy.deepcopy(json.loads(data))
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _changed(value, rng)
    if rng.random() < 0.02:
        depth = rng.choice((100, 5000))
        return b'{"kind": "model", "format": 1, "model": ' + b"[" * depth + b"]" * depth + b"}"
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            del value[key]
        elif rng.random() < 0.1:
            value[rng.choice(("x", "parts", "format", "members", "width", "solver"))] = copy.deepcopy(rng.choice(_VALUES))
        else:
            value[key] = _changed(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        value[at] = _changed(value[at], rng)
        return value
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, -100, 100, 10**6, -(10**6)))
    return copy.deepcopy(rng.choice(_VALUES))
