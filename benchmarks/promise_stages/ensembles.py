"""Stages `ensemble` and `cost`: five runs as one model, from their stored predictions; and the time of a prediction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import ltnode
from ltnode.device import choose_device, product_precision
from promise_stages.evaluating import measured
from promise_stages.predicting import Columns
from promise_stages.settings import SAMPLES, SEEDS, Place, is_complete, provenance, write_unit

_TIMED, _REPEATS = 10_000, 5


def ensemble(place: Place, model: str, data: str, seeds: Sequence[int] = SEEDS) -> bool:
    """Measure the ensemble of runs that share their held-out parts; returns False if predictions are missing.

    Its probabilities are the mean of the members', its distance the mean of their distances, and its familiarity the rank of that
    among the calibration part, which no member has seen.
    """
    began = time.monotonic()
    stored = [place.predictions(place.run(model, data, seed).name) for seed in seeds]
    if not all(path.exists() for path in stored):
        return False
    device = choose_device(place.device)
    content = [torch.load(path, map_location=device) for path in stored]
    columns = {name: _mean([Columns(**part["columns"][name]) for part in content]) for name in content[0]["columns"]}
    calibration = columns.get("calibration")
    if calibration is not None and calibration.distance is not None:
        columns = {name: _ranked(value, calibration.distance) for name, value in columns.items()}
    labels = content[0]["labels"]
    unit = {"name": f"{data}-{model}-ensemble", "model": f"{len(seeds)} x {model}", "data": data, "seed": None}
    unit |= measured(columns, labels["test"], labels["select"])
    unit |= {"members": list(seeds), "provenance": provenance(device, began, samples=SAMPLES)}
    write_unit(place.unit("evaluate", unit["name"]), unit)
    return True


def _mean(members: list[Columns]) -> Columns:
    raw = torch.logsumexp(torch.stack([member.raw.double() for member in members]), 0)
    raw = raw - torch.tensor(float(len(members)), dtype=torch.float64, device=raw.device).log()
    probs = torch.stack([member.probs.double() for member in members]).mean(0)
    distances = [member.distance for member in members if member.distance is not None]
    distance = torch.stack(distances).double().mean(0) if len(distances) == len(members) else None
    return Columns(raw, probs, distance, None)


def _ranked(columns: Columns, calibration: Tensor) -> Columns:
    assert columns.distance is not None
    order = calibration.sort().values
    at_least = len(order) - torch.searchsorted(order, columns.distance)
    return Columns(columns.raw, columns.probs, columns.distance, (1 + at_least).double() / (len(order) + 1))


def cost(place: Place, models: Sequence[str], sets: Sequence[str]) -> None:
    """Time the predictions of one run per model and set, alone on the device: milliseconds per 1,000 images, evaluations."""
    device = choose_device(place.device)
    for data in sets:
        images = place.dataset(data).test.x[:_TIMED]
        for model in models:
            folder = place.run(model, data, SEEDS[0])
            if is_complete(folder):
                write_unit(place.unit("cost", f"{data}-{model}"), _timed(folder, images, device, model, data))


def _timed(folder: Any, images: Tensor, device: torch.device, model: str, data: str) -> dict[str, Any]:
    began, seconds = time.monotonic(), []
    trained = ltnode.TrainedModel.of(folder, data, str(device))
    with product_precision("fp32"):
        x = trained.prepare(images)
        for _ in range(_REPEATS + 1):
            _wait(device)
            start = time.perf_counter()
            prediction = trained.model.predict(x, SAMPLES)
            prediction.probs  # noqa: B018  what a user reads is part of the cost
            _wait(device)
            seconds.append(time.perf_counter() - start)
    return {
        "model": model,
        "data": data,
        "batch": len(images),
        "ms_per_image": 1e3 * statistics.median(seconds[1:]) / len(images),
        "evaluations": None if prediction.stats is None else prediction.stats.n_evaluations,
        "provenance": provenance(device, began, samples=SAMPLES),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
