"""`ltnode.fit` and `ltnode.fit_seeds` end a training as ``ltnode train`` does: with an operating point, where there is one."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from tiny_problem import WIDTH, image_data

import ltnode
from ltnode.data import gap_data
from ltnode.errors import InputError
from ltnode.trained import OperatingPoint, TrainedModel, calibration_examples, choose_operating_point
from ltnode.training import TrainConfig

DATA = image_data()
CONFIG = TrainConfig(
    model="lt-node", data="patterns", preset="default", epochs=1, batch_size=32, lr=0.01, validation_fraction=0.25, device="cpu"
)


def model(seed: int = 0) -> ltnode.Model:
    return ltnode.build("lt-node", DATA, seed=seed, width=WIDTH)


@pytest.fixture
def loading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model is in memory: reading it from its folder again would be wasted time."""
    monkeypatch.setattr("ltnode.trained.model.load", lambda *args, **kwargs: pytest.fail("the model was loaded again"))


@pytest.mark.usefixtures("loading_fails")
def test_a_classifier_gets_the_operating_point_of_its_validation_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: the point that the opened folder gives on the same examples, bit for bit, and no other weights."""
    with caplog.at_level(logging.INFO, "ltnode"):
        run = ltnode.fit(model(), DATA, CONFIG, out=tmp_path / "run")
    assert "predictions abstain above an entropy of" in caplog.text
    assert run.path == tmp_path / "run"
    monkeypatch.undo()
    trained = TrainedModel.open(tmp_path / "run")
    split, description = calibration_examples(trained, DATA)
    assert trained.operating_point == choose_operating_point(trained, split, data=description)
    assert (trained.operating_point.n, trained.operating_point.samples) == (40, 10)


def test_an_existing_operating_point_is_kept(tmp_path: Path) -> None:
    ltnode.fit(model(), DATA, CONFIG, out=tmp_path)
    trained = TrainedModel.open(tmp_path)
    chosen = choose_operating_point(trained, DATA.test, 0.5, data="chosen by hand")
    chosen.save(tmp_path)
    ltnode.fit(model(), DATA, CONFIG, out=tmp_path, resume=True)
    assert OperatingPoint.read(tmp_path) == chosen


@pytest.mark.usefixtures("loading_fails")
def test_every_seed_gets_its_own(tmp_path: Path) -> None:
    runs = ltnode.fit_seeds(model, DATA, CONFIG, (0, 1), tmp_path / "run")
    points = [OperatingPoint.read(run.path) for run in runs if run.path is not None]
    assert [point.weights for point in points if point] == [TrainedModel.of(run).weights_digest() for run in runs]
    assert points[0] != points[1]


def test_nothing_held_out_no_operating_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a validation split, for a regression, and in a process that does not write."""
    ltnode.fit(model(), DATA, CONFIG.replace(validation_fraction=0.0), out=tmp_path / "none")
    regression = gap_data(n=40)
    config = CONFIG.replace(data="synthetic", batch_size=None)
    ltnode.fit(ltnode.build("lt-node", regression, seed=0, width=8), regression, config, out=tmp_path / "regression")
    monkeypatch.setenv("RANK", "1")
    ltnode.fit(model(), DATA, CONFIG, out=tmp_path / "second")
    for name in ("none", "regression", "second"):
        assert (tmp_path / name / "model.safetensors").exists()
        assert OperatingPoint.read(tmp_path / name) is None


def test_a_failed_choice_does_not_lose_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise InputError("no threshold today")

    # The package's attribute of this name is the function, not the module.
    monkeypatch.setattr(sys.modules["ltnode.fitting"], "choose_operating_point", fails)
    with caplog.at_level(logging.WARNING, "ltnode"):
        run = ltnode.fit(model(), DATA, CONFIG, out=tmp_path)
    assert run.status.value == "complete"
    assert "no threshold today" in caplog.text
    assert OperatingPoint.read(tmp_path) is None


def test_without_a_folder_nothing_is_written_and_random_numbers_go_on(tmp_path: Path) -> None:
    """The caller's generator is where it was, with and without an operating point."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    for out in (None, tmp_path / "run"):
        torch.manual_seed(5)
        ltnode.fit(model(), DATA, CONFIG, out=out)
        assert torch.equal(torch.rand(3), expected)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
