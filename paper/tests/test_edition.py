"""A whole edition: what belongs to it, what its records say, and how long the rest is expected to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paper.reproduce.edition.cells import edition_cells, gaps_in_provenance
from paper.reproduce.edition.expected import Expected, Seconds, Training, recorded_trainings, total
from paper.reproduce.edition.overview import summary
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.cells import Places
from paper.reproduce.images.grid import Cell, load_grid
from paper.reproduce.images.results import ImageResult, read_results

PAPER = PaperFolder(Path(__file__).parents[2] / "paper")
MADE = {"device": "GPU", "torch": "2", "python": "3", "version": "1", "git_commit": "abc", "wall_time_s": 10.0}


def recorded(data: str = "mnist", model: str = "node", shared: int | None = None, **changes: Any) -> ImageResult:
    """A result of 900 steps in 90 epochs: 90 seconds of training, and two protocols of 10 seconds."""
    training = {**MADE, "config_hash": "x", "wall_time_s": 90.0, "steps": 900, "concurrent_runs": shared} | changes
    content = {"data": data, "model": model, "preset": "paper", "variant": None, "seed": 0, "epochs": 90, "training": training}
    protocols = {name: {"provenance": dict(MADE)} for name in ("clean", "rotation")}
    return ImageResult({**content, "protocols": protocols, "data_checksums": {"train_x": "md5:0"}})


def expected(*results: ImageResult) -> Expected:
    return Expected(results, recorded_trainings(results))


def cell(data: str = "mnist", model: str = "node") -> Cell:
    return Cell(data, model, "paper", "", 1)


def test_a_training_counts_as_its_share_of_the_device() -> None:
    """90 s of six concurrent runs are 15 s each; without the number of runs, 90 s are an upper bound that a share replaces."""
    assert expected(recorded()).training(cell()) == Seconds(90.0, at_most=True)
    assert expected(recorded(shared=6)).training(cell()) == Seconds(15.0)
    assert expected(recorded(), recorded(shared=6)).both(cell()) == Seconds(35.0)


def test_other_sets_and_models_stand_in_for_what_is_not_recorded() -> None:
    """Per step: CIFAR10 in this record has as many steps per epoch as MNIST, and 300 epochs in place of 90."""
    known = expected(recorded(shared=6), recorded("cifar10", "lt-node", shared=2))
    training = known.training(cell("cifar10"))
    assert training is not None
    assert training.value == pytest.approx(15.0 * 300 / 90)
    assert known.evaluation(cell("cifar10")) is None
    assert known.both(cell("cifar10")) is None
    assert known.training(cell("svhn")) is None  # no record says how many steps an epoch of it has


def test_records_of_a_cpu_say_nothing_about_a_gpu() -> None:
    none = expected(recorded(device="cpu (x86_64, 1 threads)"))
    assert none.device is None
    assert none.training(cell()) is None
    assert total([None, None]) is None
    assert total([None, Seconds(1.0), Seconds(2.0, at_most=True)]) == Seconds(3.0, at_most=True)


def test_trainings_of_the_zoo_count(tmp_path: Path) -> None:
    """Their records say how many runs shared the device; folders that are no runs are passed over."""
    (tmp_path / "notes").mkdir()
    assert recorded_trainings([], tmp_path) == []
    assert recorded_trainings([], tmp_path / "nowhere") == []
    found = [training for training in recorded_trainings([], PAPER.zoo) if training.concurrent_runs == 6]
    assert {(t.data, t.model) for t in found} >= {("cifar10", "lt-node"), ("svhn", "node")}
    assert all(isinstance(training, Training) and training.per_step.value < 0.01 for training in found)


def test_times_are_written_for_people() -> None:
    assert [Seconds(119.6).text, Seconds(600.0).text, Seconds(31.0, at_most=True).text] == ["120 s", "10 min", "at most 31 s"]


def test_gaps_in_the_provenance_are_named() -> None:
    """A commit that is not known, of the training or of one protocol, and data without checksums."""
    whole = recorded()
    assert gaps_in_provenance(whole) == []
    assert gaps_in_provenance(recorded(git_commit=None)) == ["git_commit of training"]
    content = dict(whole.content) | {"data_checksums": {}}
    content["protocols"]["clean"]["provenance"]["device"] = None
    assert gaps_in_provenance(ImageResult(content)) == ["device of clean", "checksums of the data"]


def test_the_records_of_the_repository_have_a_provenance() -> None:
    """Only the first trainings of all, made before the commit was recorded, lack one thing: the commit of the training."""
    without = {r.content["weights_sha256"]: gaps_in_provenance(r) for r in read_results(PAPER.results) if gaps_in_provenance(r)}
    assert all(gaps == ["git_commit of training"] for gaps in without.values())
    assert len(without) <= 7
    assert len(edition_cells(load_grid(PAPER.grid))) == 120


def test_the_summary_tells_training_from_evaluation(tmp_path: Path) -> None:
    """15 s and 20 s a cell: 75 s of training and 100 s of evaluation for five missing ones."""
    made = [Cell("mnist", "node", "paper", "", seed) for seed in range(5)]
    (line,) = summary(made, Places(tmp_path / "runs", tmp_path / "results"), ["clean"], expected(recorded(shared=6)))
    assert line.startswith("0 of 5 done: listed cells; 0 with a complete provenance.")
    assert "The rest needs 75 s of training and 100 s of evaluation on one GPU." in line
    assert "All of them need 75 s of training and 100 s of evaluation, added up from the records." in line
