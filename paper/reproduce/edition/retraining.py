"""Cells chosen at random, trained again from scratch, and compared with the record.

A number agrees with the record if it is within two standard deviations of the mean over the recorded seeds (with ddof 1, since
few seeds are recorded). The test error decides; the other numbers are shown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode.errors import InputError
from ltnode.files import write_json
from ltnode.report.aggregate import Measured
from paper.reproduce.claims.numbers import FOREIGN, ImageNumbers, Read
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult

PREFIX = "retrained-"
ALLOWED = 2.0
_DECIDES = "test error"
_PARTNERS = {**FOREIGN, "mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@dataclass(frozen=True)
class Repeated:
    """One number of a cell that was trained again.

    Attributes:
        name: What it is.
        recorded: The record, over seeds.
        again: The number of the new training.
    """

    name: str
    recorded: Measured
    again: float

    @property
    def deviations(self) -> float:
        """Distance to the mean of the record, in standard deviations."""
        std = self.recorded.std * (self.recorded.seeds / (self.recorded.seeds - 1)) ** 0.5
        distance = abs(self.again - self.recorded.mean)
        return distance / std if std > 0 else 0.0 if distance == 0 else float("inf")


def choose(cells: Sequence[Cell], results: Sequence[ImageResult], count: int, choice: int) -> list[Cell]:
    """Choose cells at random from those of which at least two seeds are recorded, themselves included.

    Raises:
        InputError: There are fewer such cells.
    """
    recorded = {(r.data, r.model, r.preset, r.variant, r.seed) for r in results}
    seeds: dict[tuple[str, ...], int] = {}
    for key in recorded:
        seeds[key[:4]] = seeds.get(key[:4], 0) + 1
    keys = {cell.name: (cell.data, cell.model, cell.preset, cell.variant) for cell in cells}
    known = [cell for cell in cells if (*keys[cell.name], cell.seed) in recorded and seeds[keys[cell.name]] > 1]
    if len(known) < count:
        raise InputError(f"only {len(known)} cells have a record of at least two seeds, fewer than the {count} to train again")
    return random.Random(choice).sample(sorted(known, key=lambda cell: cell.name), count)


def compare(again: ImageResult, results: Sequence[ImageResult]) -> list[Repeated]:
    """Compare a new result with the record of its cell over all seeds."""
    records, new = ImageNumbers(results), ImageNumbers([again])
    found = []
    for name, make in _MEASURES.items():
        recorded = records.measured(make(records, again.data), again.data, again.model, again.preset, again.variant)
        value = make(new, again.data)(again)
        if recorded is not None and recorded.seeds > 1 and value is not None:
            found.append(Repeated(name, recorded, value))
    return found


_MEASURES: Mapping[str, Callable[[ImageNumbers, str], Read]] = {
    _DECIDES: lambda numbers, data: numbers.number("clean", "error"),
    "log-likelihood": lambda numbers, data: numbers.number("clean", "log_likelihood"),
    "rotated log-likelihood": lambda numbers, data: numbers.mean_along("rotation", "log_likelihood", "angle"),
    "AUROC, foreign set": lambda numbers, data: numbers.number("ood", "auroc", ood=_PARTNERS[data], score="max_probability"),
    "error under FGSM": lambda numbers, data: numbers.mean_along("fgsm", "error", "epsilon", units="normalised"),
}


def agrees(found: Sequence[Repeated]) -> bool:
    """Whether the number that decides is within what is allowed."""
    return any(one.name == _DECIDES and one.deviations <= ALLOWED for one in found)


def record(folder: Path, cell: Cell, again: ImageResult, found: Sequence[Repeated], choice: int) -> Path:
    """Write what came out to ``retrained-<cell>.json``; returns the file."""
    numbers: list[dict[str, Any]] = [
        {"name": one.name, "recorded": list(one.recorded.values), "again": one.again, "deviations": round(one.deviations, 3)}
        for one in found
    ]
    content = again.content
    path = folder / f"{PREFIX}{cell.name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "experiment": "retrained",
            "cell": cell.name,
            "title": cell.title,
            "choice": choice,
            "agrees": agrees(found),
            "numbers": numbers,
            "training": dict(content["training"]),
            "weights_sha256": content["weights_sha256"],
        },
    )
    return path
