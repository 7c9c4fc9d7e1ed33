"""Evaluation of one trained cell, and the content of its result file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from ltnode.trained import TrainedModel
from ltnode.training import Run
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import FORMAT, ImageResult, compact_rows, cost_of, read_result, write_result

SMALL_PART = 500
"""Number of test examples behind the numbers that anyone can check in seconds."""
_FREE_OPTIONS = ("draws",)
"""Evaluation options that add numbers without changing others."""
_PROVENANCE = ("version", "git_commit", "git_modified", "device", "torch", "python", "wall_time_s")


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate, and how.

    Attributes:
        protocols: Names of protocols; None for those of the paper that fit the data.
        options: Options of `ltnode.evaluate`.
        device: Device for the evaluation; None chooses the best one.
        overwrite: Whether to evaluate again what is already recorded.
        concurrent_runs: Number of evaluations that share the device; more than one make the measured costs meaningless.
    """

    protocols: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    overwrite: bool = False
    concurrent_runs: int = 1


def is_recorded(result: ImageResult, protocol: str, cell: Cell, evaluation: Evaluation) -> bool:
    """Whether a result holds a protocol that was evaluated with the same options."""
    options = EvaluationOptions.of(**evaluation.options).resolved(cell.preset).to_json()
    for key, part in result.protocols.items():
        if key.partition(":")[0] == protocol:
            return all(part["options"].get(name) == value for name, value in options.items() if name not in _FREE_OPTIONS)
    return False


def record(cell: Cell, run: Run, data: Dataset, path: Path, evaluation_file: Path, evaluation: Evaluation) -> ImageResult:
    """Evaluate a run and write the result file after every protocol, so that an interrupted evaluation loses nothing.

    Args:
        cell: The cell.
        run: Its finished run.
        data: Its data set.
        path: The result file.
        evaluation_file: File of the run folder with the full results of `ltnode.evaluate`.
        evaluation: What to evaluate.

    Raises:
        ConfigError: The result file belongs to other weights.
    """
    weights = TrainedModel.of(run, data).weights_digest()
    old = read_result(path) if path.exists() else None
    if old is not None and old.content["weights_sha256"] != weights:
        if not evaluation.overwrite:
            raise ConfigError(
                f"{path} holds results of other weights than {run.path}: restore that run, or evaluate these weights with "
                "--overwrite"
            )
        old = None
    parts = {} if old is None else dict(old.protocols)
    content = _description(cell, run, data, weights, old)
    overwrite = evaluation.overwrite
    for name in default_protocols(data) if evaluation.protocols is None else evaluation.protocols:
        if old is not None and not evaluation.overwrite and is_recorded(old, name, cell, evaluation):
            continue
        device, other = evaluation.device or "auto", _foreign(name, data)
        options = {"out": evaluation_file, "overwrite": overwrite, "device": device, **evaluation.options}
        evaluate(run, data, [name], ood=other, **options)
        overwrite = False
        parts |= _part(evaluation_file, name, evaluation.concurrent_runs)
        write_result(path, {**content, "learnt": _learnt(parts) or content["learnt"], "protocols": _in_order(parts)})
    return read_result(path)


def _foreign(protocol: str, data: Dataset) -> Dataset | None:
    if not PROTOCOLS[protocol].other_set:
        return None
    if data.ood is None:
        raise InputError(f"protocol {protocol!r} needs another data set, but {data.name} has no partner; leave the protocol out")
    return load_data(data.ood)


def _part(file: Path, protocol: str, concurrent_runs: int) -> dict[str, Any]:
    """The entry of a result file for one evaluated protocol."""
    provenances = read_provenance(file)
    rows = [row for row in read_rows(file) if row.protocol == protocol]
    key = next(key for key in provenances if key.partition(":")[0] == protocol)
    made = {name: provenances[key][name] for name in _PROVENANCE}
    return {
        key: {
            "options": provenances["made_with"]["options"],
            "draw_seed": rows[0].draw_seed,
            "provenance": {**made, "precision": "fp32", "concurrent_runs": concurrent_runs},
            "cost": cost_of(rows) if concurrent_runs == 1 else None,
            "rows": compact_rows(rows),
        }
    }


def _in_order(parts: Mapping[str, Any]) -> dict[str, Any]:
    names = list(PROTOCOLS)
    return dict(sorted(parts.items(), key=lambda item: names.index(item[0].partition(":")[0])))


def _learnt(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The learnt posterior on the test inputs; empty if they were not evaluated."""
    rows = parts.get("clean", {}).get("rows", [])
    return {row["metric"].partition(".")[2]: row["value"] for row in rows if row["metric"].startswith("learnt.")}


def _description(cell: Cell, run: Run, data: Dataset, weights: str, old: ImageResult | None) -> dict[str, Any]:
    """The content of a result file except for the protocols."""
    config, results = run.config, run.results
    provenance = {key: value for key, value in results["provenance"].items() if key != "data"}
    kept = None if old is None else old.content.get("small_part")
    has_small_part = cell.seed == 0 and not cell.variant
    return {
        "format": FORMAT,
        "experiment": "images",
        "data": cell.data,
        "model": cell.model,
        "preset": cell.preset,
        "variant": cell.variant or None,
        "seed": cell.seed,
        **({"trial": list(cell.trial)} if cell.trial else {}),
        **({"images": dict(cell.images)} if cell.images else {}),
        "epochs": config.epochs,
        "precision": config.precision,
        "kl_weight": effective_kl_weight(run.model, data.n_train),
        "learnt": (results.get("last") or {}).get("learnt"),
        "parameters": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "data_checksums": dict(data.checksums),
        "training": {
            **provenance,
            "steps": results["steps"],
            "accelerate": config.accelerate,
            "concurrent_runs": results.get("concurrent_runs"),
        },
        "weights_sha256": weights,
        "small_part": kept or (small_part(run, data) if has_small_part else None),
    }


def small_part(run: Run, data: Dataset) -> dict[str, Any]:
    """Evaluate the first test examples on a CPU in float32, which anyone can repeat in seconds."""
    rows = evaluate(run, data, ["clean"], device="cpu", limit=SMALL_PART, draws=0)
    numbers = {row.metric: row.value for row in rows if row.metric in ("error", "log_likelihood")}
    return {"examples": rows[0].n, "device": "cpu", "precision": "fp32", **numbers}


def effective_kl_weight(model: Model, n_train: int) -> dict[str, Any] | None:
    """The weight of the KL divergence: as set, and relative to an unbiased expected log-likelihood per data point.

    ``density`` weights estimate the expectation divided by the width of the window, so the KL divergence weighs more by that
    factor. Returns None for a model without a learnt posterior.
    """
    if not isinstance(model, LatentTimeODE) or not model.end_time.learnable:
        return None
    low, high = model.end_time.window
    weighting = Weighting.parse(model.objective.weighting)
    weight = resolve_kl_weight(model.objective.kl_weight, n_train, model.end_time.amortized)
    factor = high - low if weighting is Weighting.DENSITY else 1.0
    return {"weighting": weighting.value, "per_point": weight, "effective": weight * factor}
