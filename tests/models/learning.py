"""Short trainings that show how well a model learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.training import train_preset


def mnist_error(name: str, root: Path, epochs: int, options: dict[str, Any] | None = None, **changes: Any) -> float:
    """Return the error on all 10,000 test images after training on 6,000, with a shorter schedule and some changes."""
    data = ltnode.data.load("mnist", root=root)
    model = ltnode.build(name, "mnist", seed=0, **(options or {}))
    schedule = {"epochs": epochs, "milestones": (epochs - 2, epochs - 1), "limit": 6000, "batch_size": 64}
    config = train_preset(name, "mnist").replace(**schedule, device="cpu", checkpoint_epochs=None, **changes)
    ltnode.fit(model, data, config)
    assert data.normalise is not None
    wrong = 0
    for m in range(0, len(data.test), 1000):
        x, y = data.test.x[m : m + 1000], data.test.y[m : m + 1000]
        wrong += int((model.predict(data.normalise.apply(x)).labels != y).sum())
    return wrong / len(data.test)


def gap_rmse(name: str, steps: int, points: int = 300, **options: Any) -> tuple[ltnode.Model, float]:
    """Train a model for some steps on the 1-D set with a gap (noise 0.1); returns it with its RMSE on the training points."""
    data = ltnode.data.gap_data(points)
    model = ltnode.build(name, "synthetic", seed=0, **options)
    ltnode.fit(model, data, train_preset(name, data).replace(epochs=steps, device="cpu"))
    residual = model.predict(data.train.x).mean - data.train.y
    return model, float(residual.square().mean().sqrt())


def gap_and_data_spread(model: ltnode.Model) -> tuple[float, float]:
    """Mean spread of the members in the middle of the gap, and on the data."""
    gap, inside = torch.linspace(-0.3, 0.2, 20)[:, None], torch.linspace(0.6, 0.9, 20)[:, None]
    return float(model.predict(gap).std.mean()), float(model.predict(inside).std.mean())
