"""Stage `evaluate`: one run on its test set, on shifted, foreign and made-up images; one JSON file per run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ltnode
from ltnode import metrics
from ltnode.data import Dataset
from ltnode.device import choose_device
from ltnode.evaluation.shifts import PAPER_ROTATIONS, corrupt, rotate
from promise_stages.foreign import made_up_images
from promise_stages.predicting import Columns, predict
from promise_stages.settings import FOREIGN, SAMPLES, Place, is_complete, provenance, write_unit

ANGLES = PAPER_ROTATIONS[2::2]
BLURS = (1, 3, 5)
SHIFTED = 5_000
"""Number of test images, the first ones, that are rotated and blurred."""
FALSE_ALARMS = 0.05
_SIMULATIONS = 200


@dataclass(frozen=True)
class Inputs:
    """Images on which all runs of a data set are evaluated, uint8 on the device, by the name of what was done to them."""

    dataset: Dataset
    images: dict[str, Tensor]

    @property
    def labels(self) -> Tensor:
        """Labels of the test images."""
        return self.dataset.test.y


@lru_cache(1)
def inputs_of(place: Place, data: str) -> Inputs:
    """Make the images of a data set once for all of its runs."""
    dataset = place.dataset(data)
    test = dataset.test.x
    images = {"test": test, "foreign": place.dataset(FOREIGN[data]).test.x}
    images |= {f"rotated {angle}": rotate(test[:SHIFTED], angle) for angle in ANGLES}
    images |= {f"blurred {severity}": corrupt(test[:SHIFTED], "gaussian-blur", severity) for severity in BLURS}
    return Inputs(dataset, images | {f"made up: {kind}": made for kind, made in made_up_images(test).items()})


def evaluate(place: Place, folders: Iterable[Path], part: int = 0, parts: int = 1) -> None:
    """Evaluate complete run folders, named ``SET-MODEL-seedN``; the units of several processes are disjoint parts."""
    for folder in sorted(folders, key=_data_of)[part::parts]:
        if not is_complete(folder) or place.unit("evaluate", folder.name).exists():
            continue
        began = time.monotonic()
        write_unit(place.unit("evaluate", folder.name), evaluate_run(place, folder))
        print(f"{folder.name}: {time.monotonic() - began:.1f} s", flush=True)


def _data_of(folder: Path) -> str:
    return max((data for data in FOREIGN if folder.name.startswith(f"{data}-")), key=len)


def evaluate_run(place: Place, folder: Path) -> dict[str, Any]:
    """Predict everything with one run, store the predictions for ensembles, and measure."""
    began, device = time.monotonic(), choose_device(place.device)
    data = _data_of(folder)
    trained, inputs = ltnode.TrainedModel.of(folder, data, str(device)), inputs_of(place, data)
    assert trained.config is not None
    held = {"select": trained.validation_split(inputs.dataset), "calibration": trained.calibration_split(inputs.dataset)}
    images = {**inputs.images, **{name: split.x for name, split in held.items() if split is not None}}
    columns = {name: predict(trained, raw, SAMPLES) for name, raw in images.items()}
    select = held["select"]
    unit = measured(columns, inputs.labels, None if select is None else select.y)
    stored = place.predictions(folder.name)
    stored.parent.mkdir(parents=True, exist_ok=True)
    labels = {"test": inputs.labels.cpu(), "select": None if select is None else select.y.cpu()}
    torch.save({"columns": {name: asdict(_stored(value)) for name, value in columns.items()}, "labels": labels}, stored)
    record = trained.model.describe(trained.prepare(images["test"][:512]))
    return {
        "name": folder.name,
        "model": folder.name.removeprefix(f"{data}-").rsplit("-seed", 1)[0],
        "data": data,
        "seed": trained.config.seed,
        **unit,
        "parameters": sum(p.numel() for p in trained.model.parameters() if p.requires_grad),
        "learnt": {name: float(value) for name, value in record.items()},
        "provenance": provenance(
            device,
            began,
            samples=SAMPLES,
            shifted_images=min(SHIFTED, len(inputs.labels)),
            config_hash=trained.config.hash,
            config=trained.config.to_json(),
            weights_sha256=trained.weights_digest(),
            data=inputs.dataset.provenance(),
            foreign=FOREIGN[data],
            parts=_parts(folder),
        ),
    }


def measured(columns: dict[str, Columns], labels: Tensor, select_labels: Tensor | None) -> dict[str, Any]:
    """All numbers about a model, from its predictions."""
    temperature = 1.0
    if select_labels is not None:
        temperature = metrics.fit_temperature(columns["select"].raw, select_labels)
    test, foreign = columns["test"], columns["foreign"]
    views = {name: _views(value, temperature) for name, value in columns.items() if name not in ("calibration", "select")}
    clean = {view: _quality(probs, labels) for view, probs in views["test"].items()}
    for view, probs in views["test"].items():
        clean[view]["ece_if_calibrated"] = expected_ece(probs)
    made_up = {name.removeprefix("made up: "): value for name, value in columns.items() if name.startswith("made up")}
    return {
        "temperature": temperature,
        "n_test": len(labels),
        "n_calibration": len(columns["calibration"].raw) if "calibration" in columns else 0,
        "clean": clean,
        "rotated": _shifted("rotated", views, labels),
        "blurred": _shifted("blurred", views, labels),
        "flagged_test": _flagged(test),
        "foreign": detection(test, foreign),
        "made_up": {name: detection(test, value) for name, value in made_up.items()},
    }


def _views(columns: Columns, temperature: float) -> dict[str, Tensor]:
    """Probabilities before temperature and widening, after a temperature alone, and as the user sees them."""
    tempered = metrics.apply_temperature(columns.raw, temperature).exp()
    return {"raw": columns.raw.exp().clamp_max(1.0), "tempered": tempered, "shown": columns.probs}


def _quality(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "error": metrics.error(probs, labels),
        "log_likelihood": metrics.log_likelihood(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels),
    }


def _shifted(kind: str, views: dict[str, dict[str, Tensor]], labels: Tensor) -> dict[str, Any]:
    """Numbers per angle or severity, and their means."""
    names = [name for name in views if name.startswith(f"{kind} ")]
    found: dict[str, Any] = {"settings": [int(name.split()[-1]) for name in names]}
    for view in ("raw", "tempered", "shown"):
        rows = [_quality(views[name][view], labels[: len(views[name][view])]) for name in names]
        curves = {metric: [row[metric] for row in rows] for metric in rows[0]}
        found[view] = {**{f"{metric}_curve": curve for metric, curve in curves.items()}}
        found[view] |= {metric: sum(curve) / len(curve) for metric, curve in curves.items()}
    return found


def detection(inside: Columns, outside: Columns) -> dict[str, Any]:
    """AUROC and FPR at 95 % by several scores, the share of flagged inputs, and the mean largest probability outside."""
    scores = {
        "entropy": (-metrics.entropy(inside.probs), -metrics.entropy(outside.probs)),
        "raw entropy": (-metrics.entropy(inside.raw.exp()), -metrics.entropy(outside.raw.exp())),
        "max probability": (inside.probs.amax(1), outside.probs.amax(1)),
        "raw max probability": (inside.raw.exp().amax(1), outside.raw.exp().amax(1)),
    }
    if inside.distance is not None and outside.distance is not None:
        scores["distance"] = (-inside.distance, -outside.distance)
    found: dict[str, Any] = {
        name: {"auroc": metrics.auroc(*pair), "fpr95": metrics.fpr95(*pair)} for name, pair in scores.items()
    }
    found["flagged"] = _flagged(outside)
    found["mean_max_probability"] = outside.probs.amax(1).mean().item()
    return found


def _flagged(columns: Columns) -> float | None:
    if columns.familiarity is None:
        return None
    # A p-value is a multiple of 1 / (n + 1), which may be rounded up by a little.
    return (columns.familiarity <= FALSE_ALARMS + 1e-6).double().mean().item()


def expected_ece(probs: Tensor, bins: int = 10) -> float:
    """Mean ECE if every prediction were right exactly as often as it says, over simulated outcomes."""
    confidence = probs.amax(1).double()
    index = (confidence * bins).long().clamp_max(bins - 1)
    generator = torch.Generator(confidence.device).manual_seed(0)
    draws = torch.rand((_SIMULATIONS, len(confidence)), generator=generator, device=confidence.device)
    gap = (draws < confidence).double() - confidence
    sums = gap.new_zeros(_SIMULATIONS, bins).index_add_(1, index, gap)
    return (sums.abs().sum(1) / len(confidence)).mean().item()


def _stored(columns: Columns) -> Columns:
    values = (columns.raw, columns.probs, columns.distance, columns.familiarity)
    return Columns(*(None if value is None else value.float().cpu() for value in values))


def _parts(folder: Path) -> dict[str, Any]:
    """Sizes and checksums of the held-out parts, from the record of the run."""
    data = json.loads((folder / "config.json").read_text())["data"]
    wanted = ("n_validation", "n_calibration", "validation_indices", "calibration_indices", "checksums")
    return {key: data[key] for key in wanted if key in data}
