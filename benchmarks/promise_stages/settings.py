"""What the experiment consists of, where its units are stored, and the provenance of each."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.data import Dataset
from ltnode.device import choose_device
from ltnode.training.provenance import device_name, source_state

SETS = ("mnist", "fashion-mnist", "cifar10", "svhn")
FOREIGN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "cifar10": "svhn", "svhn": "cifar10"}
MODELS = ("node", "uni-node", "lt-node", "alt-node")
SEEDS = (0, 1, 2, 3, 4)
SAMPLES = 10
SEARCH_SETS = ("cifar10", "svhn")
SEARCH_DECAYS = (2e-4, 3e-4, 5e-4)
SEARCH_SEED = 100
RECORD = Path(__file__).parents[1] / "results" / "promises.json"


@dataclass(frozen=True)
class Place:
    """Where a stage reads and writes.

    Attributes:
        work: Folder of the run folders, unit files and stored predictions.
        arrays: Data folder, as `ltnode.data.load` reads it; None for LTNODE_DATA.
        device: Device of trainings and predictions.
        limit: Number of training examples, and of test examples of every set, for trying the script; None for all.
    """

    work: Path
    arrays: Path | None = None
    device: str = "auto"
    limit: int | None = None

    def dataset(self, name: str) -> Dataset:
        """Load an image set, with its arrays on the device, so that concurrent trainings share them."""
        data = ltnode.data.load(name, self.arrays)
        device = choose_device(self.device)
        test = data.test if self.limit is None else data.test.select(torch.arange(min(self.limit, len(data.test))))
        return replace(data, train=data.train.to(device), test=test.to(device))

    def run(self, model: str, data: str, seed: int) -> Path:
        """Run folder of one training."""
        return self.work / "runs" / f"{data}-{model}-seed{seed}"

    def unit(self, stage: str, name: str) -> Path:
        """File of one unit of a stage."""
        return self.work / "units" / f"{stage}-{name}.json"

    def predictions(self, name: str) -> Path:
        """File of the stored predictions of a run."""
        return self.work / "predictions" / f"{name}.pt"


def write_unit(path: Path, content: dict[str, Any]) -> None:
    """Write a unit with its provenance; the file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def read_units(work: Path, stage: str) -> Iterator[dict[str, Any]]:
    """Read the finished units of a stage, in the order of their names."""
    for path in sorted((work / "units").glob(f"{stage}-*.json")):
        yield json.loads(path.read_text())


def provenance(device: torch.device, began: float, **facts: Any) -> dict[str, Any]:
    """Return versions, commit, device and seconds of a unit, with further facts about it."""
    return {
        "ltnode": ltnode.__version__,
        **source_state(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "seconds": round(time.monotonic() - began, 2),
        **facts,
    }


def is_complete(folder: Path) -> bool:
    """Whether a run folder holds a finished training."""
    try:
        return json.loads((folder / "results.json").read_text())["status"] == "complete"
    except (OSError, ValueError, KeyError):
        return False
