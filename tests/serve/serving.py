"""Small untrained models whose outputs differ between inputs, and concurrent requests to an application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import numpy as np
import torch

import ltnode
from ltnode.data.augment import Normalisation
from ltnode.models.familiar_model import FamiliarModel
from ltnode.tables import Schema
from ltnode.trained import OperatingPoint, TrainedModel

PIXELS = Normalisation((0.1307,), (0.3081,))
POINT = OperatingPoint(
    coverage=0.95,
    entropy_threshold=1.5,
    n=100,
    data="invented for the tests",
    accuracy=0.9,
    accuracy_kept=0.95,
)


def images(n: int, seed: int = 0) -> torch.Tensor:
    """Blurred random pixels in [0, 1] of shape (n, 1, 28, 28)."""
    noise = torch.rand(n, 1, 7, 7, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(noise, size=(28, 28), mode="bilinear").clamp(0, 1)


def classifier(name: str, kind: str = "lt-node", point: OperatingPoint | None = POINT) -> TrainedModel:
    """A narrow classifier for 28x28 images, with a head that is scaled up so that the classes differ."""
    model = ltnode.build(kind, "mnist", seed=0, width=8)
    x = PIXELS.apply(images(32, seed=9))
    model.finish_training(x, torch.zeros(32, dtype=torch.long))
    head = next(m for m in model.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 10)
    with torch.no_grad():
        head.weight.mul_(3000)
        head.bias.sub_(model.predict(x).outputs.mean((0, 1)))
    names = tuple(str(digit) for digit in range(10))
    return TrainedModel(name, None, model.eval(), (1, 28, 28), "classification", names, PIXELS, point, "mnist")


def familiar(name: str) -> TrainedModel:
    """A classifier that knows its inputs: fitted, widened and calibrated on blurred pixels."""
    trained = classifier(name)
    assert isinstance(trained.model, FamiliarModel)
    x, labels = PIXELS.apply(images(300, seed=1)), torch.arange(300) % 10
    trained.model.fit_familiarity(x[:150], labels[:150])
    trained.model.fit_widening(x[150:200], labels[150:200])
    trained.model.calibrate_familiarity(x[200:])
    return trained


def line(name: str = "line") -> TrainedModel:
    """A 1-D regression model."""
    model = ltnode.build("lt-node", "synthetic", seed=0, width=8)
    x = torch.linspace(-1, 1, 32)[:, None]
    model.finish_training(x, torch.cos(4 * x))
    return TrainedModel(name, None, model.eval(), (1,), "regression", (), None, None, "synthetic")


CELLS = {"size": 2.5, "city": "Bern", "sold": "2024-01-31"}
"""A row of the table of `table_model`."""


def table_model(name: str = "table") -> TrainedModel:
    """A regression model of a table with a number, a category and a date."""
    days = [f"2024-01-{day:02d}" for day in range(1, 31)]
    cities = np.array(["Bern", "Rome", "Oslo"] * 10, object)
    schema = Schema.infer(
        {"size": np.arange(30) * 0.5, "city": cities, "sold": np.array(days, object), "y": np.arange(30) * 1.5}, "y"
    )
    x = torch.from_numpy(schema.encode({"size": np.arange(30) * 0.5, "city": cities, "sold": np.array(days, object)}).x).float()
    spec = ltnode.InputSpec((len(schema.features),), "regression")
    model = ltnode.build("lt-node", spec, seed=0, width=8)
    model.finish_training(x, torch.arange(30.0)[:, None])
    return TrainedModel(name, None, model.eval(), spec.shape, "regression", (), None, None, None, schema=schema)


def send_all(app: Any, requests: Sequence[Callable[[httpx.AsyncClient], Awaitable[Any]]]) -> list[Any]:
    """Send requests to an application concurrently; returns their results."""

    async def run() -> list[Any]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            return await asyncio.gather(*(request(client) for request in requests))

    return asyncio.run(run())


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Whether two JSON values agree; numbers may differ by a tolerance relative to the larger of 1 and their size."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return bool(a == b)
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
