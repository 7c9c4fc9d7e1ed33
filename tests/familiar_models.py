"""Small models whose familiarity is fitted by hand, for the tests of what shows it."""

from __future__ import annotations

from pathlib import Path

import torch

import ltnode
from ltnode.data import Dataset
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained import CalibrationRecord, TrainedModel
from ltnode.training import TrainConfig, fit
from ltnode.training.saving import write_weights

DIM = 4
CALIBRATION = 99
"""Number of calibration examples: familiarities are multiples of 1/100."""


def rows(n: int, seed: int) -> torch.Tensor:
    """Standard normal rows."""
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed))


def table_data(task: str = "classification") -> Dataset:
    """Rows whose first column decides."""
    x = rows(200, 0)
    y = (x[:, 0] > 0).long() if task == "classification" else x[:, 0] + 0.1 * x[:, 1]
    names = ("no", "yes") if task == "classification" else None
    return Dataset.from_arrays(x, y, task=task, name="rows", class_names=names)  # type: ignore[arg-type]


def familiar_run(folder: Path, task: str = "classification", model: str = "lt-node", calibration: int = CALIBRATION) -> Path:
    """A run folder after a short training, with density, widening and ranks fitted on separate rows."""
    data = table_data(task)
    built = ltnode.build(model, data, seed=0, width=8)
    config = TrainConfig(model=model, data="rows", preset="default", epochs=3, batch_size=32, device="cpu")
    run = fit(built, data, config, out=folder)
    assert isinstance(run.model, FamiliarModel)
    prepare = TrainedModel.of(run, data).prepare
    run.model.fit_familiarity(prepare(data.train.x), data.train.y)
    other = table_data(task).train
    run.model.fit_widening(prepare(other.x[:60]), other.y[:60])
    if calibration:
        run.model.calibrate_familiarity(prepare(rows(calibration, 2)))
    write_weights(run.model, folder)
    trained = TrainedModel.open(folder)
    if calibration:
        CalibrationRecord(calibration, "rows of the tests", trained.weights_digest()).save(folder)
    return folder
