"""The record of a session: which cells it completed in which time. The time of a whole edition is added up from such records."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ltnode._version import __version__
from ltnode.device import choose_device
from ltnode.errors import DataError
from ltnode.files import write_json
from ltnode.training.provenance import device_name, source_state
from paper.reproduce.edition.cells import edition_cells
from paper.reproduce.edition.expected import Expected, Seconds, total
from paper.reproduce.images.grid import Cell

PREFIX = "session-"


@dataclass(frozen=True)
class Made:
    """What is to be compared with the end of a session.

    Attributes:
        began: When it began.
        done: Names of the cells that were done before.
    """

    began: datetime
    done: frozenset[str]

    @classmethod
    def before(cls, done: Sequence[Cell]) -> Made:
        """The state at the beginning of a session."""
        return cls(datetime.now(UTC), frozenset(cell.name for cell in done))


def write_record(folder: Path, made: Made, done: Sequence[Cell], seconds: float, device: str | None, **how: int) -> Path | None:
    """Write which cells a session completed; None if it completed none, or trials only.

    Args:
        folder: Folder of the results.
        made: The state at its beginning.
        done: The cells that are done at its end.
        seconds: Its wall time.
        device: Its device; None stands for the best one.
        **how: Numbers that say how it worked.
    """
    cells = [cell.name for cell in done if cell.name not in made.done and not cell.trial]
    if not cells:
        return None
    path = folder / f"{PREFIX}{made.began:%Y%m%d-%H%M%S}.json"
    content = {
        "experiment": "session",
        "began": made.began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        **how,
        "cells": cells,
        "provenance": {
            "version": __version__,
            **source_state(),
            "device": device_name(choose_device(device or "auto")),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    write_json(path, content)
    return path


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of sessions, the earliest first.

    Raises:
        DataError: A record is damaged.
    """
    found = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); restore it from the repository, or delete it") from error
    return found


def measured_text(records: Sequence[Mapping[str, Any]], grid: Sequence[Cell], expected: Expected) -> str:
    """What the sessions on the device of the estimates took for cells of the edition; empty without any.

    A session that also made other cells counts with the share of its time that its cells of the edition are expected to take.
    """
    edition = {cell.name: cell for cell in edition_cells(grid)}
    every = {cell.name: cell for cell in grid}
    seconds, names = 0.0, set()
    for record in records:
        here = [name for name in record["cells"] if name in edition]
        if record["provenance"]["device"] != expected.device or not here:
            continue
        whole = total(expected.both(every[name]) for name in record["cells"] if name in every)
        part = total(expected.both(edition[name]) for name in here)
        share = part.value / whole.value if whole is not None and part is not None else len(here) / len(record["cells"])
        seconds += share * record["seconds"]
        names |= set(here)
    if not names:
        return ""
    others = [cell for name, cell in edition.items() if name not in names]
    rest = total(expected.both(cell) for cell in others)
    count = f"{len(names)} of the {len(edition)} cells of the paper"
    line = f"Sessions on one {expected.device} made {count} in {Seconds(seconds).text}."
    if rest is None or not others:
        return line
    return f"{line} With the expected time of the others, an edition takes {(Seconds(seconds) + rest).text}."
