"""The runs that a report reads: folders with results, training logs and models.

Runs of one model, preset and data set are seeds of one variant only if they differ in nothing but the seed. If training or
evaluation had other settings, the settings that differ become part of the variant (``extra["variant"]`` of its rows).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ltnode.errors import CheckpointError, InputError
from ltnode.evaluation import ResultRow, read_provenance, read_rows
from ltnode.models import Model
from ltnode.report.naming import Variant
from ltnode.training import Run, load
from ltnode.training.config import FREE_ON_RESUME, TrainConfig
from ltnode.training.run import RunFolder, read_log
from ltnode.training.run_config import read_run_config

EVALUATION = "evaluation.json"
"""File in a run folder to which `ltnode evaluate` writes the results."""
_NO_SETTINGS = (*FREE_ON_RESUME, "seed", "model", "data", "preset", "log_every")
"""Keys of a training configuration that do not distinguish variants."""


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One evaluated run.

    Attributes:
        path: Its folder, or the folder of its file of results.
        rows: Its results.
        provenance: Where the results come from, by protocol.
        settings: All settings that influence the results except model, data, preset and seed, by dotted name.
        history: Lines of its training log; empty if there is none.
    """

    path: Path
    rows: list[ResultRow]
    provenance: dict[str, dict[str, Any]]
    settings: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def variant(self) -> Variant:
        """Model, preset and settings that differ from other runs."""
        return Variant.of(self.rows[0])

    @property
    def data(self) -> str:
        """Name of its data set."""
        return self.rows[0].data

    @property
    def seed(self) -> int | None:
        """Seed of its training."""
        return self.rows[0].seed

    def model(self) -> Model | None:
        """Load the trained model; returns None if there is no run folder, or if the model has user-defined parts."""
        if not (self.path / "model.safetensors").exists():
            return None
        try:
            return load(self.path)
        except CheckpointError:
            return None


def read_runs(runs: Iterable[str | Path | Run]) -> list[ReportedRun]:
    """Read evaluated runs.

    Args:
        runs: Run folders, files of results, or runs with a folder.

    Raises:
        InputError: There are none, or a run was never evaluated.
        CheckpointError: A file is damaged.
    """
    found = [_read(run) for run in runs]
    if not found:
        raise InputError("a report needs at least one evaluated run: pass run folders that hold evaluation.json")
    return _distinguished(found)


def _distinguished(runs: list[ReportedRun]) -> list[ReportedRun]:
    groups: dict[tuple[str, Variant], list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault((run.data, run.variant), []).append(run)
    distinguished = []
    for run in runs:
        group = groups[run.data, run.variant]
        names = sorted({name for member in group for name in member.settings})
        different = [name for name in names if len({member.settings.get(name) for member in group}) > 1]
        words = ", ".join(f"{name.rsplit('.', 1)[-1]} = {run.settings.get(name, 'none')}" for name in different)
        rows = [replace(row, extra={**row.extra, "variant": words}) for row in run.rows] if words else run.rows
        distinguished.append(replace(run, rows=rows))
    return distinguished


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
    provenance = read_provenance(results)
    return ReportedRun(folder, rows, provenance, _settings(folder, provenance), read_log(RunFolder(folder).metrics))


def _settings(folder: Path, provenance: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Settings of training, model and evaluation, by dotted name."""
    found = _flat("evaluation", provenance["made_with"].get("options") or {})
    if (folder / "config.json").exists():
        config = read_run_config(folder, "a run folder")
        values = TrainConfig.from_json(config["train"]).to_json() if config.get("train") else {}
        train = {key: value for key, value in values.items() if key not in _NO_SETTINGS}
        model = {key: value for key, value in (config.get("model") or {}).items() if key == "options"}
        found |= _flat("train", train) | _flat("model", model)
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}.{key}"
        flat |= _flat(name, value) if isinstance(value, Mapping) else {name: json.dumps(value)}
    return flat
