"""Generated photos of shapes in one folder per class, for tests of users' own image folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("cross", "disc", "stripes")


def photo(kind: str, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A bright shape at a random place on a dark background, with noise; (size, size, 3)."""
    down, across = np.mgrid[:size, :size] / size
    x, y = rng.uniform(0.35, 0.65, 2)
    shape = {
        "cross": (abs(across - x) < 0.07) | (abs(down - y) < 0.07),
        "disc": (across - x) ** 2 + (down - y) ** 2 < 0.06,
        "stripes": np.sin(40 * (across + x)) > 0,
    }[kind]
    pixels = np.where(shape[..., None], rng.integers(150, 256, 3), rng.integers(0, 90, 3)) + rng.normal(0, 10, (size, size, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_photos(folder: Path, n: int, size: int = 16, parts: Sequence[str] = ("",), seed: int = 0) -> Path:
    """Write n photos of every class into ``folder/PART/CLASS``, or ``folder/CLASS`` by default, as JPEG files."""
    rng = np.random.default_rng(seed)
    for part in parts:
        for kind in CLASSES:
            place = folder / part / kind
            place.mkdir(parents=True, exist_ok=True)
            for number in range(n):
                Image.fromarray(photo(kind, size, rng)).save(place / f"{number:04d}.jpg", quality=90)
    return folder
