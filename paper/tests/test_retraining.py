"""``ltnode reproduce retrain``: randomly chosen cells are trained again and compared with the record."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tiny_images import tiny_data, tiny_paper
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.report.aggregate import Measured
from paper.reproduce.commands import images as command_module
from paper.reproduce.edition.retraining import Repeated, agrees

APP = make_app()
__all__ = ["tiny_data"]
pytestmark = pytest.mark.usefixtures("tiny_data")


@pytest.fixture(autouse=True)
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "write_pages", lambda *args, **options: None)


def record(paper: Path, seeds: str) -> None:
    """Train and record cells."""
    folders = ["--paper", str(paper), "--runs", str(paper.parent / "runs"), "--presets", "paper", "--draws", "0"]
    made = CliRunner().invoke(APP, ["reproduce", "images", *folders, "--seeds", seeds])
    assert made.exit_code == 0, made.output


def test_cells_are_trained_again_and_compared_with_the_record(tmp_path: Path) -> None:
    """Three seeds are recorded; a cell that is trained again is the same on a CPU, and so agrees. The choice is recorded."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    record(paper, "0-2")
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("seeds = [0]", "seeds = [0, 1, 2]"))
    words = ["reproduce", "retrain", "--paper", str(paper), "--work", str(tmp_path / "work"), "--pack", str(tmp_path / "pack")]
    made = CliRunner().invoke(APP, [*words, "--cells", "1", "--choice", "3"])
    assert made.exit_code in (0, 1), made.output
    (path,) = (paper / "results").glob("retrained-*.json")
    content = json.loads(path.read_text())
    assert content["choice"] == 3
    numbers = {entry["name"]: entry for entry in content["numbers"]}
    assert len(numbers["test error"]["recorded"]) == 3
    assert numbers["test error"]["again"] == numbers["test error"]["recorded"][int(content["cell"][-1])]
    assert content["agrees"] is (made.exit_code == 0)
    with zipfile.ZipFile(tmp_path / "pack" / "results.zip") as archive:
        assert archive.namelist() == [f"results/{path.name}"]
    assert CliRunner().invoke(APP, [*words, "--cells", "4"]).exit_code == 2


def test_deviations_are_those_of_a_sample() -> None:
    """1, 2 and 3 have a mean of 2 and a standard deviation (ddof 1) of 1; without a deviation only the same number agrees."""
    known = Measured((1.0, 2.0, 3.0))
    assert Repeated("x", known, 3.5).deviations == pytest.approx(1.5)
    assert [Repeated("x", Measured((1.0, 1.0)), value).deviations for value in (1.0, 1.1)] == [0.0, float("inf")]
    assert agrees([Repeated("test error", known, 3.9), Repeated("log-likelihood", known, 9.0)])
    assert not agrees([Repeated("test error", known, 4.1)])
    assert not agrees([])
