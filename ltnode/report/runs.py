"""What a report is made of: run folders with their results, logs and models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode.errors import CheckpointError, InputError
from ltnode.evaluation import ResultRow, read_provenance, read_rows
from ltnode.models import Model
from ltnode.report.naming import Variant
from ltnode.training import Run, load

EVALUATION = "evaluation.json"
"""Where `ltnode evaluate` puts the results in a run folder."""


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One evaluated run.

    Attributes:
        path: Its folder, or the file of its results.
        rows: Its results.
        provenance: Where they come from, by protocol.
        history: Lines of its training log; empty where there is none.
    """

    path: Path
    rows: list[ResultRow]
    provenance: dict[str, dict[str, Any]]
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def variant(self) -> Variant:
        """Model and preset."""
        return Variant.of(self.rows[0])

    @property
    def data(self) -> str:
        """Name of its data set."""
        return self.rows[0].data

    @property
    def seed(self) -> int | None:
        """Of its training."""
        return self.rows[0].seed

    def model(self) -> Model | None:
        """The trained model; None where there is no run folder, or the model is made of its user's own parts."""
        if not (self.path / "model.safetensors").exists():
            return None
        try:
            return load(self.path)
        except CheckpointError:
            return None


def read_runs(runs: Iterable[str | Path | Run]) -> list[ReportedRun]:
    """Read evaluated runs.

    Args:
        runs: Run folders, files of results, or runs that have a folder.

    Raises:
        InputError: There are none, or a run was never evaluated.
        CheckpointError: A file is damaged.
    """
    found = [_read(run) for run in runs]
    if not found:
        raise InputError("a report needs at least one evaluated run: pass run folders that hold evaluation.json")
    return found


def _read(run: str | Path | Run) -> ReportedRun:
    if isinstance(run, Run):
        if run.path is None:
            raise InputError("this run has no folder: train it with out=..., then evaluate it with out=<folder>/evaluation.json")
        run = run.path
    path = Path(run)
    results = path / EVALUATION if path.is_dir() else path
    if not results.exists():
        raise InputError(f"{path} holds no {EVALUATION}: run `ltnode evaluate {path}` first")
    rows = read_rows(results)
    if not rows:
        raise InputError(f"{results} holds no results yet: run `ltnode evaluate {path}` to the end")
    folder = path if path.is_dir() else path.parent
    return ReportedRun(folder, rows, read_provenance(results), _history(folder / "metrics.jsonl"))


def _history(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); repair or delete it") from error
