"""Data sets of a few dozen 8x8 images under the names of the real ones, and a grid that trains on them in a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ltnode.cluster.executor import Executor, Outcome, Task, call
from ltnode.data import Dataset
from ltnode.data.cache import write_cache
from ltnode.data.official import RawSplit
from paper.reproduce.images import cells, evaluation

PARTNERS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
TRAIN = (
    '[train]\nepochs = 2\nmilestones = [1]\nbatch_size = 16\nprecision = "fp32"\nmodel_options.width = 8\ncheckpoint_epochs = 1\n'
)


def tiny_set(name: str, size: int = 8, classes: int = 3) -> Dataset:
    """Few classes, which are the position of a bright row in noise."""
    generator = torch.Generator().manual_seed(len(name))
    y = torch.arange(48) % classes
    x = torch.randint(0, 80, (48, 1, size, size), generator=generator, dtype=torch.uint8)
    for k in range(48):
        x[k, 0, 2 * int(y[k])] = 250
    made = Dataset.from_arrays(x[:32], y[:32], x[32:], y[32:], name=name)
    return replace(made, ood=PARTNERS[name])


def tiny_paper(folder: Path, models: tuple[str, ...] = ("node", "lt-node")) -> Path:
    """A folder like ``paper`` with a grid of one data set."""
    (folder / "grid").mkdir(parents=True)
    for model in models:
        runs = '[[runs]]\npreset = "paper"\nseeds = [0]\n'
        runs += '\n[[runs]]\npreset = "default"\nseeds = [0]\n' if model == "lt-node" else ""
        (folder / "grid" / f"mnist-{model}.toml").write_text(f'data = "mnist"\nmodel = "{model}"\n\n{TRAIN}\n{runs}')
    published = Path(__file__).parents[2] / "paper" / "published.toml"
    (folder / "published.toml").write_bytes(published.read_bytes())
    return folder


def tiny_store(root: Path) -> None:
    """Write tiny sets where the real ones would be, for other processes."""
    for name in PARTNERS:
        made = tiny_set(name)
        train, test = (RawSplit(part.x.numpy(), part.y.numpy().astype("uint8")) for part in (made.train, made.test))
        write_cache(root / name / "arrays", train, test, checksums=dict(made.checksums), source="unverified")


@pytest.fixture
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the image experiments load the tiny sets."""
    for module in (cells, evaluation):
        monkeypatch.setattr(module, "load_data", tiny_set)
    monkeypatch.setattr(evaluation, "SMALL_PART", 8)


class InProcess(Executor):
    """An engine that runs tasks in this process, where the tiny sets are, as soon as they are submitted."""

    def __init__(self) -> None:
        self._ended: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """One task at a time."""
        return 1

    def submit(self, task: Task) -> None:
        """Run a task."""
        self._ended.append(Outcome.of_answer(task.name, call(task.function, task.arguments)))

    def wait(self, seconds: float) -> list[Outcome]:
        """All tasks."""
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, name: str) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""
