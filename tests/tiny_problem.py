"""Image problems and models small enough to train in a second, for the tests of evaluation and report."""

from __future__ import annotations

from pathlib import Path

import torch

import ltnode
from ltnode.data import Dataset
from ltnode.training import Run, TrainConfig, fit

SIDE, CLASSES = 10, 3
WIDTH = 34
"""The narrowest network with more than one channel per normalised group, as the full one has; narrower ones learn little."""


def images(n: int, seed: int, kind: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy textures (rows, columns, a chess-board), uint8 (n, 1, 10, 10), and which of them it is.

    With ``kind`` 1 the stripes are twice as wide and run along the diagonals: other data of the same shape.
    """
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    phases = (row, column, row + column) if kind == 0 else ((row + column) // 2, (row - column) // 2, row // 2)
    textures = torch.stack([(phase % 2).float() for phase in phases])[:, None]
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    noise = torch.rand(n, 1, SIDE, SIDE, generator=generator)
    return (255 * (0.22 * textures[y] + 0.75 * noise)).to(torch.uint8), y


def image_data(name: str = "patterns", kind: int = 0, n_test: int = 60) -> Dataset:
    """Training and test images of one kind of patterns."""
    x, y = images(160, 0, kind)
    x_test, y_test = images(n_test, 1, kind)
    return Dataset.from_arrays(x, y, x_test, y_test, name=name, n_classes=CLASSES)


def other_data(name: str = "others", n_test: int = 40) -> Dataset:
    """Images of other textures, for out-of-distribution tests."""
    return image_data(name, kind=1, n_test=n_test)


def image_run(
    model: str, data: Dataset, preset: str = "default", seed: int = 0, out: Path | None = None, **changes: object
) -> Run:
    """A narrow model after a few passes over the data."""
    values = {"epochs": 4, "batch_size": 32, "lr": 0.01, "log_every": 2, **changes}
    config = TrainConfig(model=model, data=data.name, preset=preset, seed=seed, **values)  # type: ignore[arg-type]
    built = ltnode.build(model, data, preset=preset, seed=seed, width=WIDTH)  # type: ignore[arg-type]
    return fit(built, data, config, out=out)
