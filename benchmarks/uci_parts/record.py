"""The record: one line per set, split and method, written as a whole after each of them, so that a run may be stopped."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch

import ltnode
from ltnode.files import write_bytes
from ltnode.training.provenance import source_state

Row = dict[str, Any]


@dataclass
class Record:
    """The rows that are known, and the sources and versions that they were measured with (`Row["source"]` is an index)."""

    path: Path
    provenance: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record of earlier runs; an empty one if there is none."""
        if not path.exists():
            return cls(path)
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, content["provenance"], content["rows"])

    def known(self) -> set[tuple[str, str, int]]:
        """Set, method and split of every row."""
        return {(row["data"], row["method"], row["split"]) for row in self.rows}

    def forget(self, methods: Sequence[str], sets: Sequence[str]) -> None:
        """Drop the rows of methods that have changed, on some sets."""
        self.rows = [row for row in self.rows if row["method"] not in methods or row["data"] not in sets]

    def add(self, data: str, method: str, split: int, measured: dict[str, float]) -> None:
        """Add a row and write the record."""
        source = versions(method)
        if source not in self.provenance:
            self.provenance.append(source)
        values = {name: float(f"{value:.6g}") for name, value in measured.items()}
        self.rows.append({"data": data, "method": method, "split": split, **values, "source": self.provenance.index(source)})
        self.write()

    def write(self) -> None:
        """Write the record with one row per line, in the order in which the rows were measured."""
        provenance, rows = (",\n".join(f"  {json.dumps(line)}" for line in lines) for lines in (self.provenance, self.rows))
        write_bytes(self.path, f'{{\n "provenance": [\n{provenance}\n ],\n "rows": [\n{rows}\n ]\n}}\n'.encode())


def versions(method: str) -> dict[str, Any]:
    """What a row depends on."""
    others = {"ngboost": metadata.version("ngboost")} if method == "NGBoost" else {}
    return {
        "ltnode": ltnode.__version__,
        **source_state(),
        "scikit_learn": sklearn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        **others,
        "python": platform.python_version(),
        "device": f"cpu ({platform.machine()}, 1 thread)",
    }
