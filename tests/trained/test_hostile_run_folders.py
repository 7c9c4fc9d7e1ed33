"""Hostile run folders: each is refused with a CheckpointError of one line, before anything is built, solved or waited for."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ltnode
from ltnode.errors import CheckpointError, InputError
from ltnode.ode.prediction_grid import extend_edges
from ltnode.trained import TrainedModel
from ltnode.training import tensor_file

POINT = {
    "format": 1,
    "coverage": 0.95,
    "entropy_threshold": 1.0,
    "n": 10,
    "data": "tests",
    "accuracy": 0.9,
    "accuracy_kept": 0.95,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved ensemble of two small classifiers of vectors."""
    model = ltnode.build("ensemble", ltnode.InputSpec((2,), "classification", 3), seed=0, width=4, members=2)
    return ltnode.save(model, tmp_path_factory.mktemp("original") / "model")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def refused(folder: Path, words: str = ".") -> str:
    """The message of the error, which comes within seconds and is one line."""
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=words) as caught:
        TrainedModel.open(folder)
    assert time.monotonic() - began < 5
    return str(caught.value)


def with_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "grid",
    [
        torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64),
        torch.zeros(5, dtype=torch.float64),
        torch.tensor([0.0, 0.5, float("nan")], dtype=torch.float64),
        torch.tensor([0.0, 0.5, float("inf")], dtype=torch.float64),
        torch.linspace(0, 1, 1_000_001, dtype=torch.float64),
        torch.tensor([0.5, 1.0], dtype=torch.float64),
    ],
    ids=["reversed", "zero", "nan", "infinite", "a million steps", "late start"],
)
@pytest.mark.parametrize("networks", ["networks", "members"])
def test_a_grid_on_which_a_solve_would_not_end_is_refused(folder: Path, grid: torch.Tensor, networks: str):
    """The checksum is that of the changed tensors: it tells damage, not intent. ``members`` is the name of earlier versions."""
    path = folder / "model.safetensors"
    tensors = tensor_file.read(path)
    del tensors["networks.1.grid"]
    path.write_bytes(tensor_file.to_bytes({**tensors, f"{networks}.1.grid": grid}))
    refused(folder, "networks.1.grid")


def test_an_end_time_far_beyond_the_grid_is_refused_when_it_is_solved():
    """Weights decide the end-times of an untruncated posterior: the extension is bounded, whatever they are."""
    assert extend_edges([0.0, 1.0], 3.5) == [0.0, 1.0, 2.0, 3.0, 4.0]
    for edges, t_end in (([0.0, 1e-9], 1e9), ([0.0, 1.0, 1.0], 2.0), ([0.0, 1.0], float("inf")), ([0.0, 1.0], float("nan"))):
        with pytest.raises(InputError, match="beyond the prediction grid"):
            extend_edges(edges, t_end)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("members", 10**7),
        ("members", 50_000),
        ("width", 10**9),
        ("width", 90_000),
        ("parts", []),
        ("parts", {"stem": 1}),
        ("solver", {"max_steps": 10**9}),
        ("solver", {"rtol": 1e-300}),
        ("solver", [1]),
        ("augment", -1),
    ],
)
def test_a_description_that_does_not_fit_its_weights_is_refused_before_it_is_built(folder: Path, key: str, value: Any):
    with_config(folder, lambda config: config["model"]["options"].update({key: value}))
    refused(folder, "cannot be built")


@pytest.mark.parametrize("change", [{"shape": [10**9]}, {"shape": "no"}, {"n_classes": 10**9}, {"n_classes": []}])
def test_an_input_that_does_not_fit_the_weights_is_refused(folder: Path, change: dict[str, Any]):
    with_config(folder, lambda config: config["model"]["input"].update(change))
    refused(folder, "cannot be built|does not fit")


@pytest.mark.parametrize("name", ["config.json", "operating_point.json", "model.safetensors"])
def test_deeply_nested_json_is_refused(folder: Path, name: str):
    """100,000 brackets exhaust the stack of a recursive parser, and 500 that of what reads the value afterwards."""
    for depth in (500, 100_000):
        nested = "[" * depth + "]" * depth
        if name == "model.safetensors":
            header = json.dumps({"__metadata__": {"ltnode": nested}}).encode()
            (folder / name).write_bytes(len(header).to_bytes(8, "little") + header)
        else:
            (folder / name).write_text('{"kind": "model", "format": 1, "model": ' + nested + "}")
        refused(folder, "damaged")


@pytest.mark.posix
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "operating_point.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(folder: Path, name: str, kind: str):
    """A pipe would wait for a writer, and /dev/zero has no end."""
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert "regular file" in refused(folder)


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "F8_E4M3", "nonsense", None, ["F32"]])
def test_dtypes_that_ltnode_does_not_write_are_refused(folder: Path, dtype: Any):
    header = json.dumps({"w": {"dtype": dtype, "shape": [2], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    refused(folder, "damaged")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        7,
    ],
)
def test_shapes_that_the_bytes_cannot_hold_are_refused(folder: Path, entry: Any):
    header = json.dumps({"w": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refused(folder, "damaged")


@pytest.mark.parametrize(
    "normalise", [{"mean": [[0.1, 0.2]], "std": [1, 1]}, {"mean": [0, 1e999], "std": [1, 1]}, {"mean": 3}, []]
)
def test_constants_that_are_not_numbers_are_refused(folder: Path, normalise: Any):
    with_config(folder, lambda config: config.update(data={"name": "x", "normalise": normalise}))
    refused(folder, "description of the data")


@pytest.mark.parametrize(
    ("key", "text"),
    [("accuracy_kept", "99.0"), ("accuracy", "-0.1"), ("entropy_threshold", "1" + "0" * 400), ("entropy_threshold", "NaN")],
)
def test_impossible_values_of_an_operating_point_are_refused(folder: Path, key: str, text: str):
    values = {name: json.dumps(value) for name, value in POINT.items()}
    content = ", ".join(f'"{name}": {value}' for name, value in {**values, key: text}.items())
    (folder / "operating_point.json").write_text("{" + content + "}")
    refused(folder, "operating_point.json is damaged")


def test_names_of_classes_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]):
    from ltnode.cli import console

    hostile = "cat\x1b]0;owned\x07\x9b31m\u202egod"
    console.say(hostile)
    console.table("", ["Class"], [[hostile]])
    console.facts({hostile: hostile})
    console.error(hostile)
    shown = "".join(capsys.readouterr())
    assert not set(shown) & set("\x1b\x07\x9b\u202e") and "cat" in shown


def test_predicting_from_several_threads_restores_the_mode():
    """Eight threads predict with one model in train mode: afterwards every part is in train mode again."""
    from concurrent.futures import ThreadPoolExecutor

    model = ltnode.build("lt-node", ltnode.InputSpec((2,), "classification", 3), seed=0, width=4).train()
    x = torch.randn(4, 2)
    for _ in range(5):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: model.predict(x, 2), range(16)))
        assert all(part.training for part in model.modules())
