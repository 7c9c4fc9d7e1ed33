"""The image experiments: train what is missing, continue what was interrupted, evaluate, and record one small file per cell.

A cell's run folder is ``<runs>/<name of the cell>``. It may come from another machine: `images_runs.import_run` puts a finished
run in the place of its cell, so that training and evaluation need not happen in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.errors import ConfigError, InputError
from ltnode.evaluation import EvaluationOptions, default_protocols, evaluate, read_provenance
from ltnode.evaluation.protocols import PROTOCOLS
from ltnode.evaluation.results import read_rows
from ltnode.models import LatentTimeODE, Model
from ltnode.objective import Weighting, resolve_kl_weight
from ltnode.report.runs import EVALUATION
from ltnode.trained import TrainedModel
from ltnode.training import Run, RunStatus, fit, load
from ltnode.training.concurrent import Job, fit_together
from ltnode.training.run import RunFolder
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import (
    FORMAT,
    PREFIX,
    ImageResult,
    compact_rows,
    cost_of,
    read_result,
    write_result,
)
from paper.reproduce.images.run_folders import differences, run_config

SMALL_PART = 500
"""Test examples of the numbers that anyone can check in seconds."""
_FREE_OPTIONS = ("draws",)
"""Evaluation options that add numbers and change none."""


class State(StrEnum):
    """How far a cell is."""

    MISSING = "missing"
    INTERRUPTED = "interrupted"
    TRAINED = "trained"
    """Trained; protocols are missing."""
    DONE = "done"


@dataclass(frozen=True)
class Places:
    """Where things are.

    Attributes:
        runs: Folder of the run folders.
        out: Folder of the result files.
    """

    runs: Path
    out: Path

    def run(self, cell: Cell) -> Path:
        """Run folder of a cell."""
        return self.runs / cell.name

    def result(self, cell: Cell) -> Path:
        """Result file of a cell."""
        return self.out / f"{PREFIX}{cell.name}.json"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate, and how.

    Attributes:
        protocols: Names; None for those of the paper that fit the data.
        options: Of `ltnode.evaluate`.
        device: Where; None for the best one.
        overwrite: Evaluate again what is already recorded.
    """

    protocols: tuple[str, ...] | None = None
    options: Mapping[str, Any] | None = None
    device: str | None = None
    overwrite: bool = False


def state(cell: Cell, places: Places, protocols: Sequence[str]) -> tuple[State, list[str]]:
    """How far a cell is, and which of some protocols are recorded.

    Args:
        cell: The cell.
        places: Where its files would be.
        protocols: Names.
    """
    recorded = _recorded(places.result(cell))
    have = [] if recorded is None else [key.partition(":")[0] for key in recorded.protocols]
    done = [name for name in protocols if name in have]
    if recorded is not None and len(done) == len(protocols):
        return State.DONE, done
    folder = places.run(cell)
    if not (folder / "config.json").exists():
        return (State.MISSING if recorded is None else State.TRAINED), done
    finished = RunFolder(folder).status() is RunStatus.COMPLETE and (folder / "model.safetensors").exists()
    return (State.TRAINED if finished else State.INTERRUPTED), done


def paper_protocols() -> list[str]:
    """The paper's protocols for images."""
    return [name for name, protocol in PROTOCOLS.items() if protocol.in_paper and protocol.task == "classification"]


def reproduce(cell: Cell, places: Places, evaluation: Evaluation | None = None, device: str | None = None) -> ImageResult | None:
    """Bring one cell to its end: train it or continue its training, evaluate what is missing, write the result file.

    Args:
        cell: The cell.
        places: Where its files go.
        evaluation: What to evaluate; None only trains.
        device: Where to train; None for the best one.

    Returns:
        The recorded result; None where there is nothing to record yet.

    Raises:
        ConfigError: The run folder or the result file is that of other settings or other weights.
        TrainingError: Training failed.
        DataError: The data set is not there.
    """
    if evaluation is not None and not evaluation.overwrite and _all_recorded(cell, places, evaluation):
        return read_result(places.result(cell))
    data = load_data(cell.data)
    run = trained(cell, places, data, device)
    return None if evaluation is None else _evaluate(cell, run, data, places, evaluation)


def trained(cell: Cell, places: Places, data: Dataset, device: str | None = None) -> Run:
    """The finished run of a cell; trained or continued where it is not finished."""
    folder = places.run(cell)
    if RunFolder(folder).status() is RunStatus.COMPLETE and (folder / "model.safetensors").exists():
        return _opened(cell, folder)
    config = cell.config if device is None else cell.config.replace(device=device)
    return fit(cell.build(data), data, config, folder, resume=True)


def train_together(cells: Sequence[Cell], places: Places, count: int, device: str | None = None) -> None:
    """Train cells that are not finished, up to ``count`` side by side, those of one precision together.

    Args:
        cells: Cells; those whose run is finished are passed over.
        places: Where their run folders are.
        count: Runs that take turns; where one ends the next begins.
        device: Where to train; None for the best one.

    Raises:
        TrainingError: A run failed; the others of its precision were trained to their end.
    """
    left = [cell for cell in cells if state(cell, places, ())[0] in (State.MISSING, State.INTERRUPTED)]
    sets = {name: load_data(name) for name in {cell.data for cell in left}}
    for precision in sorted({cell.config.precision for cell in left}):
        jobs = []
        for cell in left:
            config = cell.config if device is None else cell.config.replace(device=device)
            if config.precision == precision:
                jobs.append(Job(cell.build(sets[cell.data]), sets[cell.data], config, places.run(cell)))
        fit_together(jobs, resume=True, at_once=count)


def _opened(cell: Cell, folder: Path) -> Run:
    """A finished run as it was trained, whatever the device."""
    config = run_config(folder)
    found = differences(cell, config)
    if found:
        raise ConfigError(
            f"{folder} is not the run of {cell.title}: {'; '.join(found)}. Move it away, or choose another folder with --runs"
        )
    return Run(load(folder), config, folder, status=RunStatus.COMPLETE, results=RunFolder(folder).read_results())


def _recorded(path: Path) -> ImageResult | None:
    return read_result(path) if path.exists() else None


def _wanted(cell: Cell, data: Dataset | None, evaluation: Evaluation) -> list[str]:
    if evaluation.protocols is not None:
        return list(evaluation.protocols)
    return paper_protocols() if data is None else list(default_protocols(data))


def _options(cell: Cell, evaluation: Evaluation) -> dict[str, Any]:
    """As they are recorded, without those that change no number."""
    options = EvaluationOptions.of(**dict(evaluation.options or {})).resolved(cell.preset).to_json()
    return {key: value for key, value in options.items() if key not in _FREE_OPTIONS}


def _is_recorded(result: ImageResult | None, protocol: str, options: Mapping[str, Any]) -> bool:
    for key, part in (result.protocols if result is not None else {}).items():
        if key.partition(":")[0] == protocol:
            return all(part["options"].get(name) == value for name, value in options.items())
    return False


def _all_recorded(cell: Cell, places: Places, evaluation: Evaluation) -> bool:
    result, options = _recorded(places.result(cell)), _options(cell, evaluation)
    return result is not None and all(_is_recorded(result, name, options) for name in _wanted(cell, None, evaluation))


def _evaluate(cell: Cell, run: Run, data: Dataset, places: Places, evaluation: Evaluation) -> ImageResult:
    path, options = places.result(cell), _options(cell, evaluation)
    weights = TrainedModel.of(run, data).weights_digest()
    old = _recorded(path)
    if old is not None and old.content["weights_sha256"] != weights:
        if not evaluation.overwrite:
            raise ConfigError(
                f"{path} holds results of other weights than {run.path}: put that run back, or evaluate these weights with "
                "--overwrite"
            )
        old = None
    parts = {} if old is None else dict(old.protocols)
    content = _description(cell, run, data, weights, old)
    evaluation_file = places.run(cell) / EVALUATION
    overwrite = evaluation.overwrite
    for name in _wanted(cell, data, evaluation):
        if _is_recorded(old, name, options) and not evaluation.overwrite:
            continue
        evaluate(
            run,
            data,
            [name],
            ood=_foreign(name, data),
            out=evaluation_file,
            overwrite=overwrite,
            device=evaluation.device or "auto",
            **dict(evaluation.options or {}),
        )
        overwrite = False
        parts |= _parts(evaluation_file, name)
        # After every protocol, so that an interrupted evaluation has lost nothing.
        write_result(path, {**content, **_learnt(parts, content), "protocols": _in_order(parts)})
    return read_result(path)


def _foreign(protocol: str, data: Dataset) -> Dataset | None:
    if not PROTOCOLS[protocol].other_set:
        return None
    if data.ood is None:
        raise InputError(f"protocol {protocol!r} needs another data set, and {data.name} has no partner; leave it out")
    return load_data(data.ood)


def _parts(file: Path, protocol: str) -> dict[str, Any]:
    provenances = read_provenance(file)
    options = provenances["made_with"]["options"]
    made = [row for row in read_rows(file) if row.protocol == protocol]
    key = next(key for key in provenances if key.partition(":")[0] == protocol)
    provenance = provenances[key]
    return {
        key: {
            "options": options,
            "draw_seed": made[0].draw_seed,
            "provenance": {
                name: provenance[name]
                for name in ("version", "git_commit", "git_modified", "device", "torch", "python", "wall_time_s")
            }
            | {"precision": "fp32"},
            "cost": cost_of(made),
            "rows": compact_rows(made),
        }
    }


def _in_order(parts: Mapping[str, Any]) -> dict[str, Any]:
    names = list(PROTOCOLS)
    return dict(sorted(parts.items(), key=lambda item: names.index(item[0].partition(":")[0])))


def _learnt(parts: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The learnt posterior on test inputs where they were predicted, else as training saw it last."""
    rows = parts.get("clean", {}).get("rows", [])
    found = {row["metric"].partition(".")[2]: row["value"] for row in rows if row["metric"].startswith("learnt.")}
    return {"learnt": found or content["learnt"]}


def _description(cell: Cell, run: Run, data: Dataset, weights: str, old: ImageResult | None) -> dict[str, Any]:
    config, results = run.config, run.results
    provenance = {key: value for key, value in results["provenance"].items() if key != "data"}
    last = results.get("last") or {}
    small = cell.seed == 0 and not cell.variant
    kept = None if old is None else old.content.get("small_part")
    return {
        "format": FORMAT,
        "experiment": "images",
        "data": cell.data,
        "model": cell.model,
        "preset": cell.preset,
        "variant": cell.variant or None,
        "seed": cell.seed,
        **({"trial": list(cell.trial)} if cell.trial else {}),
        "epochs": config.epochs,
        "precision": config.precision,
        "kl_weight": effective_kl_weight(run.model, data.n_train),
        "learnt": last.get("learnt"),
        "parameters": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "data_checksums": dict(data.checksums),
        "training": {**provenance, "steps": results["steps"], "accelerate": config.accelerate},
        "weights_sha256": weights,
        "small_part": kept or (small_part(run, data) if small else None),
    }


def small_part(run: Run, data: Dataset) -> dict[str, Any]:
    """Numbers on the first test examples on a CPU in float32, which anyone can check in seconds."""
    found = evaluate(run, data, ["clean"], device="cpu", limit=SMALL_PART, draws=0)
    numbers = {row.metric: row.value for row in found if row.metric in ("error", "log_likelihood")}
    return {"examples": found[0].n, "device": "cpu", "precision": "fp32", **numbers}


def effective_kl_weight(model: Model, n_train: int) -> dict[str, Any] | None:
    """How strongly the KL counts: as set, and relative to an unbiased expectation of the log-likelihood per data point.

    ``density`` weights estimate the expectation divided by the width of the window, so their KL weighs that many times more.
    None for a model without a learnt posterior.
    """
    if not isinstance(model, LatentTimeODE) or not model.end_time.learnable:
        return None
    low, high = model.end_time.window
    weighting = Weighting.parse(model.objective.weighting)
    weight = resolve_kl_weight(model.objective.kl_weight, n_train, model.end_time.amortized)
    factor = high - low if weighting is Weighting.DENSITY else 1.0
    return {"weighting": weighting.value, "per_point": weight, "effective": weight * factor}
