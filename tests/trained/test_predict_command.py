"""``ltnode predict`` and ``ltnode operating-point``: the table for people, the files for programs, the errors for bad inputs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import ltnode
from ltnode.cli.app import make_app
from ltnode.trained import OperatingPoint, TrainedModel, to_png

APP = make_app()


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words], prog_name="ltnode")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of points in the plane, trained by the command with a validation split."""
    folder = tmp_path_factory.mktemp("runs") / "annuli"
    settings = ("--limit", "60", "--device", "cpu", "--set", "validation_fraction=0.5", "--set", "epochs=2")
    result = run("train", "--model", "lt-node", "--data", "concentric", "--out", folder, *settings)
    assert result.exit_code == 0, result.output
    assert "abstain above an entropy of" in result.output
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained ALT-NODE for MNIST: every input has its own end-times."""
    folder = tmp_path_factory.mktemp("models") / "digits"
    ltnode.save(ltnode.build("alt-node", "mnist", seed=0, width=34), folder)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(to_png(torch.randint(0, 256, (1, 28, 28), dtype=torch.uint8)))
    (folder / "b.png").write_bytes(to_png(torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8)))
    return folder


def test_training_with_a_validation_split_chooses_the_operating_point(vectors: Path) -> None:
    """The point is chosen once, on the held-out examples: resuming the finished run keeps a point that the user chose."""
    point = OperatingPoint.read(vectors)
    assert point is not None
    assert point.data == "30 validation examples of concentric that training held out (share 0.5, seed 0)"
    changed = OperatingPoint(**{**point.__dict__, "coverage": 0.5})
    changed.save(vectors)
    words = ("--limit", "60", "--device", "cpu", "--set", "validation_fraction=0.5", "--set", "epochs=2", "--resume")
    assert run("train", "--model", "lt-node", "--data", "concentric", "--out", vectors, *words).exit_code == 0
    assert OperatingPoint.read(vectors) == changed
    point.save(vectors)


def test_json_of_a_table_holds_the_rows(vectors: Path, tmp_path: Path) -> None:
    """Every number in the document equals that of `TrainedModel.rows`; standard output holds nothing else."""
    (tmp_path / "points.csv").write_text("x,y\n0.1,0.2\n1.5,-1\n")
    result = run("predict", vectors, tmp_path / "points.csv", "--json", "--top", "2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    trained = TrainedModel.open(vectors)
    expected = trained.rows(torch.tensor([[0.1, 0.2], [1.5, -1.0]], dtype=torch.float64))
    assert [row["input"] for row in document["predictions"]] == [f"{tmp_path}/points.csv:2", f"{tmp_path}/points.csv:3"]
    for row, own in zip(document["predictions"], expected, strict=True):
        assert {key: row[key] for key in own.to_json()} == own.to_json()
        assert [entry["probability"] for entry in row["top"]] == sorted(own.probs or (), reverse=True)
        assert isinstance(row["abstain"], bool)
    assert trained.operating_point is not None
    assert document["operating_point"] == trained.operating_point.to_json()


def test_flags_follow_the_operating_point(vectors: Path, tmp_path: Path) -> None:
    """An operating point that no input reaches flags all of them."""
    point = OperatingPoint.read(vectors)
    assert point is not None
    OperatingPoint(**{**point.__dict__, "entropy_threshold": -1.0}).save(vectors)
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    result = run("predict", vectors, tmp_path / "x.npy")
    point.save(vectors)
    assert result.stdout.count("abstain") == 3  # two flags and their explanation


def test_csv_out_has_a_column_for_everything(vectors: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([0.5, 0.5]))
    result = run("predict", vectors, tmp_path / "x.npy", "--out", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    assert "Proba-" in result.stdout
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    trained = TrainedModel.open(vectors)
    own = trained.rows(torch.tensor([[0.5, 0.5]], dtype=torch.float64))[0]
    assert row["input"] == str(tmp_path / "x.npy")
    assert [float(row[f"p({name})"]) for name in trained.class_names] == list(own.probs or ())
    assert (int(row["label"]), row["name"], int(row["abstain"])) == (own.label, own.name, int(own.abstain or False))
    assert [float(row[key]) for key in ("t05", "t50", "t95")] == list(own.end_time or ())


def test_images_are_converted_with_a_note(digits: Path, pictures: Path, tmp_path: Path) -> None:
    """Files are sorted by name, conversions are reported, and per-input end-times have a column."""
    result = run("predict", digits, pictures, "--data", "mnist", "--out", tmp_path / "out.json", "--samples", "3")
    assert result.exit_code == 0, result.output
    note = "colour -> grey, centre-cropped 64x48 -> 48x48, resized 48x48 -> 28x28"
    assert f"b.png: {note}" in result.stdout.replace("\n", "")
    assert "End-time" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [(Path(row["input"]).name, row["notes"]) for row in document["predictions"]] == [
        ("a.png", []),
        ("b.png", note.split(", ")),
    ]
    assert document["samples"] == 3
    assert document["operating_point"] is None
    assert "ltnode operating-point" in result.stdout


def test_bad_inputs_are_reported_and_the_others_predicted(digits: Path, pictures: Path, tmp_path: Path) -> None:
    """Exit status 2, one line per bad input on standard error, and rows for the good ones."""
    (pictures / "broken.png").write_bytes((pictures / "a.png").read_bytes()[:100])
    result = run("predict", digits, pictures, tmp_path / "missing.png", "--data", "mnist", "--json")
    assert result.exit_code == 2
    errors = " ".join(result.stderr.split())
    assert "broken.png: the image is damaged or truncated" in errors
    assert "missing.png: No such file" in errors
    assert "2 of 4 inputs could not be used" in errors
    assert [Path(row["input"]).name for row in json.loads(result.stdout)["predictions"]] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("RUN", "x.csv", "--out", "x.txt"), "--out must end in .json or .csv"),
        (("nowhere", "x.csv"), "nowhere is not a folder"),
        (("RUN", "x.csv", "--device", "gpu"), "'cuda:N'"),
        (("RUN", "wide.csv"), "line 1 must have 2 columns, not 3; leave out the target"),
        (("RUN", "empty"), "contains no images"),
    ],
)
def test_errors_are_one_line(vectors: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """Exit status 2 and no traceback, as for every command."""
    (tmp_path / "x.csv").write_text("1,2\n")
    (tmp_path / "wide.csv").write_text("1,2,3\n")
    (tmp_path / "empty").mkdir()
    places = {"RUN": vectors, **{name: tmp_path / name for name in ("x.csv", "wide.csv", "empty")}}
    result = run("predict", *(places.get(word, word) for word in words))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_regression_shows_intervals(tmp_path: Path) -> None:
    ltnode.save(ltnode.build("lt-node", "synthetic", seed=0), tmp_path / "m")
    (tmp_path / "x.csv").write_text("-1\n0\n0.5\n")
    result = run("predict", tmp_path / "m", tmp_path / "x.csv", "--out", tmp_path / "o.csv")
    assert result.exit_code == 0, result.output
    assert "90 % interval" in result.stdout
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["low90"]) < float(row["mean"]) < float(row["high90"]) for row in rows] == [True] * 3


def test_operating_point_command(vectors: Path) -> None:
    """Another coverage and rate are stored with the run and shown; an invalid share or rate is an error."""
    before = OperatingPoint.read(vectors)
    assert before is not None
    result = run("operating-point", vectors, "--coverage", "0.5", "--false-alarm-rate", "0.01", "--device", "cpu")
    assert result.exit_code == 0, result.output
    point = OperatingPoint.read(vectors)
    before.save(vectors)
    assert point is not None
    assert (point.coverage, point.false_alarm_rate, point.n) == (0.5, 0.01, 30)
    assert point.entropy_threshold < before.entropy_threshold
    assert run("operating-point", vectors, "--coverage", "0").exit_code == 2
    assert "strictly between 0 and 1" in run("operating-point", vectors, "--false-alarm-rate", "1").stderr
    assert OperatingPoint.read(vectors) == before
