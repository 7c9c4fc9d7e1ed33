"""``ltnode bench``: every implementation is timed and its work is counted, and the record says where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ltnode.cli.app import make_app


def bench(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(make_app(), ["bench", "--device", "cpu", "--repeats", "2", *words], prog_name="ltnode")
    return result.exit_code, result.output


@pytest.mark.parametrize("model", ["lt-node", "alt-node", "node", "sde-net"])
def test_every_way_has_a_time_and_its_evaluations(model: str, tmp_path: Path):
    """The training grid needs fewer evaluations than search and replay, and the printed times are the recorded ones."""
    code, output = bench("--model", model, "--data", "synthetic", "--batch", "20", "--json", str(tmp_path / "speed.json"))
    assert code == 0, output
    found = json.loads((tmp_path / "speed.json").read_text())
    timings = {(t["work"], t["way"]): t for t in found["timings"]}
    assert all(t["milliseconds"] > 0 and t["evaluations"] > 0 for t in timings.values())
    assert found["torch"] and found["device"].startswith("cpu") and "git_commit" in found
    if model != "sde-net":
        reference = timings["training step", "reference: grid search, then replay"]
        kept = timings["training step", "training grid, eager"]
        assert kept["evaluations"] < reference["evaluations"]
    for t in timings.values():
        assert f"{t['milliseconds']:.2f}" in output


FIELDS = """
import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, t, h):
        return torch.tanh(self.layer(h))


class Sized(nn.Module):
    def __init__(self, width):
        super().__init__()


def make():
    return Field(6)


def rotation(t, h):
    return torch.stack([-h[:, 1], h[:, 0]], dim=1)


instance = Field(2)
"""


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with fields in the current folder, under a name that no other test imports."""
    name = f"fields_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(FIELDS)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(("field", "state"), [("Field", "4"), ("make", "6"), ("rotation", "2"), ("instance", "3,2")])
def test_a_field_of_ones_own_is_measured_in_every_way(fields: str, field: str, state: str, tmp_path: Path):
    """Classes, factories, functions and instances; the table has the ways of a built-in model, and why there are no more."""
    words = ("--field", f"{fields}:{field}", "--state", state, "--batch", "8", "--json", str(tmp_path / "speed.json"))
    code, output = bench(*words)
    assert code == 0, output
    assert "training runs eagerly: the device is cpu" in output
    found = json.loads((tmp_path / "speed.json").read_text())
    ways = [t["way"] for t in found["timings"]]
    assert ways[:2] == ["reference: grid search, then replay", "training grid, eager"] and ways[-1] == "10 samples"
    assert all(t["evaluations"] >= 7 for t in found["timings"])
    assert field in found["subject"]


def test_a_file_works_like_a_module(fields: str):
    code, output = bench("--field", f"{fields}.py:Field", "--state", "4", "--batch", "8", "--optimizer", "sgd")
    assert code == 0 and "sgd" in output, output


MISTAKES = {
    "no state": ("{}:Field", (), "--field needs the shape of a state"),
    "no name": ("{}", ("--state", "4"), "--field must be MODULE:NAME"),
    "misspelt name": ("{}:Fild", ("--state", "4"), "Did you mean 'Field'?"),
    "no module": ("none_such:Field", ("--state", "4"), "there is no module 'none_such'"),
    "no file": ("none.py:Field", ("--state", "4"), "there is no file none.py"),
    "needs arguments": ("{}:Sized", ("--state", "4"), "needs width"),
    "another shape": ("{}:Field", ("--state", "5"), "does not accept states of shape (2, 5)"),
    "another result": ("{}:rotation", ("--state", "4"), "dy/dt must have the shape of y"),
    "no field": ("{}:torch", ("--state", "4"), "not an nn.Module or a function f(t, h)"),
    "no numbers": ("{}:Field", ("--state", "wide"), "--state must be whole numbers"),
}


@pytest.mark.parametrize(("field", "options", "answer"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_with_a_field_is_reported_in_one_line(fields: str, field: str, options: tuple[str, ...], answer: str):
    code, output = bench("--field", field.format(fields), *options)
    assert code == 2 and answer in output and "Traceback" not in output, output


def test_a_state_without_a_field_is_refused():
    code, output = bench("--state", "4")
    assert code == 2 and "--state belongs to --field" in output


def test_a_wrong_name_is_reported_in_one_line():
    code, output = bench("--model", "lt-nod")
    assert code == 2 and "unknown model" in output
    assert "Traceback" not in output


def test_a_file_that_cannot_be_written_is_reported_before_measuring(tmp_path: Path):
    code, output = bench("--data", "synthetic", "--json", str(tmp_path / "missing" / "speed.json"))
    assert code == 2 and "there is no folder" in output and " ms" not in output
