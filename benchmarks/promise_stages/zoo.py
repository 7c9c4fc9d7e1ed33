"""Stage `zoo`: finished runs become the trained models of the repository, each with operating point and calibration record.

The cards are written afterwards by `ltnode reproduce claims`, from the records.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ltnode
from ltnode import fitting, training
from ltnode.device import choose_device
from ltnode.training import Run, TrainConfig
from promise_stages.settings import SEEDS, Place, is_complete, provenance
from promise_stages.training import DISTILLED

ZOO = Path(__file__).parents[2] / "zoo"
RECORD = Path(__file__).parents[1] / "results" / "zoo.json"
ENSEMBLE = ("node", "cifar10")
STUDENT_DATA = "cifar10"
SMALL_PART = 500
"""Number of test images, the first ones, behind the numbers that anyone can check in seconds."""
_FILES = ("config.json", "model.safetensors", "results.json", "metrics.jsonl")


def build_zoo(place: Place, models: Sequence[str], sets: Sequence[str]) -> None:
    """Add the runs of seed 0, the distilled one and the ensemble to the zoo, where they are missing, and record small parts."""
    wanted = {f"{model}-{data}": place.run(model, data, 0) for model in models for data in sets}
    student = place.run(DISTILLED, STUDENT_DATA, 0)
    if STUDENT_DATA in sets and is_complete(student):
        wanted[f"{DISTILLED}-{STUDENT_DATA}"] = student
    for name, source in wanted.items():
        if not (ZOO / name).exists():
            _add(source, ZOO / name, place)
    if ENSEMBLE[0] in models and ENSEMBLE[1] in sets:
        name = f"ensemble-{ENSEMBLE[1]}"
        if not (ZOO / name).exists():
            runs = [_finished(place.run(*ENSEMBLE, seed), place, training.fit) for seed in SEEDS]
            fitting.assemble_members(runs, place.dataset(ENSEMBLE[1]), ZOO / name)
        wanted[name] = ZOO / name
    record_small_parts(place, sorted(wanted))


def _add(source: Path, target: Path, place: Place) -> None:
    """Copy a run, and end it as `ltnode.fit` does, on the examples that its training held out."""
    target.mkdir(parents=True)
    for name in _FILES:
        shutil.copyfile(source / name, target / name)
    _finished(target, place, fitting.fit)


def _finished(folder: Path, place: Place, fit: Callable[..., Run]) -> Run:
    """A complete run from its folder, which is loaded and not trained."""
    config = TrainConfig.from_json(json.loads((folder / "config.json").read_text())["train"])
    assert config.data is not None
    data = place.dataset(config.data)
    model = ltnode.build(config.model, data, config.preset, seed=config.seed, **config.model_options)
    return fit(model, data, config, folder, resume=True)


def record_small_parts(place: Place, names: Sequence[str], record: Path = RECORD) -> None:
    """Evaluate the first test images on a CPU in float32, and record error and log-likelihood by zoo folder."""
    rows: dict[str, Any] = json.loads(record.read_text())["models"] if record.exists() else {}
    for name in names:
        began, trained = time.monotonic(), ltnode.TrainedModel.open(ZOO / name, "cpu")
        weights = trained.weights_digest()
        if rows.get(name, {}).get("weights_sha256") == weights:
            continue
        data = ltnode.data.load(trained.data, place.arrays)
        rows[name] = {
            **small_part(ZOO / name, data),
            "weights_sha256": weights,
            "provenance": provenance(choose_device("cpu"), began),
        }
        print(f"{name}: {rows[name]}", flush=True)
        content = {
            "protocol": f"what predict returns, first {SMALL_PART} test images, CPU, fp32",
            "models": dict(sorted(rows.items())),
        }
        record.write_text(json.dumps(content, indent=1) + "\n")


def small_part(folder: Path, data: ltnode.data.Dataset) -> dict[str, Any]:
    """Error and log-likelihood of a zoo model on the first test images."""
    found = ltnode.evaluate(folder, data, ["clean"], device="cpu", limit=SMALL_PART, draws=0)
    numbers = {row.metric: row.value for row in found if row.metric in ("error", "log_likelihood")}
    return {"examples": found[0].n, **numbers}
