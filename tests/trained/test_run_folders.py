"""Run folders of earlier releases keep loading, and give the numbers that they gave when they were written."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ltnode
from ltnode.errors import CheckpointError
from ltnode.trained import TrainedModel
from ltnode.training.run_config import RUN_FOLDER_FORMAT

FIXTURES = Path(__file__).parents[1] / "fixtures" / "run-folders"
REPLACED = ("ood", "ood_score")
"""Values of rows that a later release replaced."""
FOLDERS = sorted(path.parent for path in FIXTURES.glob("*/*/config.json"))


def script(release: Path) -> ModuleType:
    """The script that wrote the folders of a release; it also makes their inputs."""
    spec = importlib.util.spec_from_file_location("make", release / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(found: Any, expected: Any) -> bool:
    """Whether JSON values agree, numbers to 1e-6 of themselves or of 1: the rounding of float32 on another processor."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(close(one, other) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True))
    return bool(found == expected)


def test_every_kind_of_folder_is_there() -> None:
    assert {folder.name for folder in FOLDERS} == {
        "familiar-regression", "familiar-vectors", "images", "regression", "saved-model", "vectors"
    }  # fmt: skip
    assert (
        sum(file.stat().st_size for file in FIXTURES.rglob("*") if file.is_file() and "__pycache__" not in file.parts) < 200_000
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_a_folder_gives_the_recorded_numbers(folder: Path) -> None:
    made_by, expected = script(folder.parent), json.loads((folder.parent / "expected.json").read_text())[folder.name]
    assert isinstance(ltnode.load(folder), ltnode.Model)
    trained = TrainedModel.open(folder)
    assert (trained.operating_point is not None) == (folder.name in ("familiar-vectors", "images", "vectors"))
    assert (trained.calibration is not None) == folder.name.startswith("familiar")
    rows = [row.to_json() for row in trained.rows(made_by.inputs(trained.shape))]
    for row, recorded in zip(rows, expected["rows"], strict=True):
        known = {name: value for name, value in recorded.items() if name not in REPLACED}
        assert close({name: row[name] for name in known}, known)
    assert close(made_by.evaluated(folder), expected["evaluation"])


@pytest.mark.parametrize("name", ["regression", "vectors"])
def test_a_complete_run_is_recognised(name: str, tmp_path: Path) -> None:
    """Resumed with its own configuration there is nothing left to do: the weights stay those of the folder."""
    folder = shutil.copytree(FIXTURES / "v0.1" / name, tmp_path / name)
    trained = TrainedModel.open(folder)
    data, config = trained.dataset(), trained.config
    assert config is not None
    model = ltnode.build("lt-node", data, seed=9, width=8)
    run = ltnode.fit(model, data, config, out=folder, resume=True)
    assert run.status.value == "complete"
    assert TrainedModel.of(run).weights_digest() == trained.weights_digest()


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (RUN_FOLDER_FORMAT + 1, "written by a newer ltnode.*upgrade"),
        (0, "damaged: format must be an integer >= 1"),
        ("1", "damaged"),
        (True, "damaged"),
        (None, "damaged"),
    ],
)
def test_another_format_is_refused_with_its_reason(version: object, reason: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "v0.1" / "vectors", tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": version}))
    for read in (ltnode.load, TrainedModel.open, ltnode.evaluate):
        with pytest.raises(CheckpointError, match=reason):
            read(folder)
