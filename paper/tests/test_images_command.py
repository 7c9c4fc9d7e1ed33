"""``ltnode reproduce images`` from an empty folder to tables, with tiny data sets under the real names.

Only the data sets are replaced, by 48 images of 8x8 pixels.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny_images import tiny_data, tiny_paper, tiny_set
from typer.testing import CliRunner, Result

from ltnode.cli.app import make_app
from ltnode.errors import CheckpointError, ConfigError
from ltnode.models import Model
from paper.reproduce.claims import generalisation
from paper.reproduce.commands import images as reproduce
from paper.reproduce.images import cells as images
from paper.reproduce.images.grid import Cell, load_grid
from paper.reproduce.images.results import read_result
from paper.reproduce.images.run_folders import import_run

APP = make_app()
__all__ = ["tiny_data"]
pytestmark = pytest.mark.usefixtures("tiny_data")


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not write tables, figures and pages, which a separate test covers."""
    monkeypatch.setattr(reproduce, "write_pages", lambda *args, **options: None)


def command(paper: Path, *words: str) -> Result:
    folders = ["--paper", str(paper), "--runs", str(paper.parent / "runs")]
    return CliRunner().invoke(APP, ["reproduce", "images", *folders, "--draws", "0", *words])


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_from_nothing_to_tables_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All protocols of one model; tables and pages that are written again have the same bytes."""
    monkeypatch.setattr(generalisation, "_parameter_count", lambda data, model: None)  # it would build 24 real networks
    paper = tiny_paper(tmp_path / "paper")
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    page.write_text("# x\n\n<!-- results -->\nold\n<!-- /results -->\nend\n")
    record = Path("benchmarks/results/promises.json")  # the tables of the page are made from it
    (tmp_path / record).parent.mkdir(parents=True)
    (tmp_path / record).write_bytes((Path(__file__).parents[2] / record).read_bytes())
    result = command(paper, "--models", "lt-node", "--presets", "paper")
    assert result.exit_code == 0, result.output
    lt = json.loads((paper / "results" / "images-mnist-lt-node-paper-seed0.json").read_text())
    assert list(lt["protocols"]) == ["clean", "rotation", "ood:fashion-mnist", "fgsm"]
    assert [lt[key] for key in ("data", "model", "preset", "variant", "seed", "epochs", "precision")] == [
        "mnist", "lt-node", "paper", None, 0, 2, "fp32",
    ]  # fmt: skip
    # On (0, 3), density weights estimate a third of the expectation, so a KL weight of 0.1 acts like 0.3.
    assert lt["kl_weight"] == {"weighting": "density", "per_point": 0.1, "effective": pytest.approx(0.3)}
    assert set(lt["learnt"]) >= {"alpha", "beta", "mean", "tail"}
    assert lt["small_part"]["examples"] == 8
    rotation = next(row for row in lt["protocols"]["rotation"]["rows"] if row["metric"] == "error")
    assert (rotation["along"], rotation["at"], len(rotation["values"])) == ("angle", list(range(0, 181, 15)), 13)
    assert lt["protocols"]["fgsm"]["cost"]["seconds_per_1000"] > 0
    assert lt["protocols"]["clean"]["provenance"]["precision"] == "fp32"
    results = page.read_text()
    assert "| LT-NODE |" in results
    assert "old" not in results
    assert results.endswith("<!-- /results -->\nend\n")
    assert "LT-NODE (paper)" in (paper / "tables.md").read_text()
    assert "MNIST, LT-NODE: test error" in (paper / "README.md").read_text()
    assert (paper / "figures" / "figure-4-mnist.svg").read_text().count("<path") > 20
    before = snapshot(tmp_path)
    assert CliRunner().invoke(APP, ["reproduce", "claims", "--paper", str(paper)]).exit_code == 0
    assert snapshot(tmp_path) == before
    page.write_text(results.replace("| MNIST |", "| changed |"))
    assert CliRunner().invoke(APP, ["reproduce", "claims", "--paper", str(paper), "--no-pages"]).exit_code == 0
    assert "| changed |" in page.read_text()  # only the pages of the folder paper are written


@pytest.mark.usefixtures("no_pages")
def test_concurrent_training_gives_the_same_cells_as_training_in_turn(tmp_path: Path) -> None:
    """Two models trained concurrently have the same weights, byte for byte, as models trained in turn."""
    for name, words in (("alone", ()), ("together", ("--together", "2"))):
        paper = tiny_paper(tmp_path / name / "paper", ("node", "uni-node"))
        result = command(paper, "--no-evaluate", *words)
        assert result.exit_code == 0, result.output
    runs = [snapshot(tmp_path / name / "runs") for name in ("alone", "together")]
    weights = [{path: data for path, data in found.items() if path.endswith("model.safetensors")} for found in runs]
    assert len(weights[0]) >= 2
    assert weights[0] == weights[1]
    folders = sorted({path.split("/")[0] for path in runs[1]})
    assert json.loads(runs[1][f"{folders[0]}/results.json"])["concurrent_runs"] == 2


@pytest.mark.usefixtures("no_pages")
def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without the run folder, the second command neither loads data nor trains nor writes."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    assert command(paper, "--protocols", "clean").exit_code == 0
    assert json.loads((paper / "results" / "images-mnist-node-paper-seed0.json").read_text())["kl_weight"] is None
    (tmp_path / "runs").rename(tmp_path / "away")
    before = snapshot(tmp_path)
    monkeypatch.setattr(images, "load_data", lambda name: pytest.fail("nothing is left to do"))
    again = command(paper, "--protocols", "clean")
    assert again.exit_code == 0
    assert ": done" in again.output
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("no_pages")
def test_the_list_shows_what_is_done_and_what_is_missing(tmp_path: Path) -> None:
    """It writes nothing, and distinguishes an interrupted run from a missing one."""
    paper = tiny_paper(tmp_path / "paper")
    assert command(paper, "--models", "node", "--protocols", "clean").exit_code == 0
    begun = tmp_path / "runs" / "mnist-lt-node-paper-seed0"
    begun.mkdir(parents=True)
    (begun / "config.json").write_text("{}")
    before = snapshot(tmp_path)
    shown = command(paper, "--list", "--protocols", "clean")
    states = {line.split()[-1]: line for line in shown.output.splitlines() if "MNIST" in line}
    assert "done" in states["mnist-node-paper-seed0"]
    assert "interrupted" in states["mnist-lt-node-paper-seed0"]
    assert "missing" in states["mnist-lt-node-default-seed0"]
    assert "1 of 3 done" in shown.output
    whole = command(paper, "--list")
    assert "trained (clean)" in next(line for line in whole.output.splitlines() if "mnist-node-paper" in line)
    assert "cells of the paper" in whole.output  # without the cell of the default preset
    assert "0 of 2 done" in whole.output
    assert snapshot(tmp_path) == before


def interrupted_build(after: int) -> Any:
    """Make a `Cell.build` whose model raises SIGINT after some training steps."""
    build = Cell.build

    def made(self: Cell, data: Any = None) -> Model:
        model = build(self, data)
        steps, constrain = iter(range(1, 1_000_000)), model.after_step

        def after_step() -> None:
            constrain()
            if next(steps) == after:
                signal.raise_signal(signal.SIGINT)

        model.after_step = after_step  # type: ignore[method-assign]
        return model

    return made


@pytest.mark.usefixtures("no_pages")
def test_an_interrupted_training_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second of two epochs: status 130, no result. The resumed run has the weights and numbers of a whole one."""
    chosen = ["--models", "lt-node", "--presets", "default", "--protocols", "clean"]
    whole, stopped = tiny_paper(tmp_path / "a" / "paper"), tiny_paper(tmp_path / "b" / "paper")
    assert command(whole, *chosen).exit_code == 0
    with monkeypatch.context() as patched:
        patched.setattr(Cell, "build", interrupted_build(3))
        result = command(stopped, *chosen)
    assert result.exit_code == 130
    assert not (stopped / "results").exists()
    assert "interrupted" in command(stopped, *chosen, "--list").output
    assert command(stopped, *chosen).exit_code == 0
    name = "mnist-lt-node-default-seed0"
    weights = [(tmp_path / side / "runs" / name / "model.safetensors").read_bytes() for side in "ab"]
    assert weights[0] == weights[1]
    rows = [read_result(paper / "results" / f"images-{name}.json").rows() for paper in (whole, stopped)]
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("no_pages")
def test_protocols_are_added_to_what_is_recorded(tmp_path: Path) -> None:
    """A second machine with the same weights adds a protocol; other weights are refused without --overwrite."""
    paper, runs = tiny_paper(tmp_path / "paper", ("node",)), tmp_path / "runs"
    assert command(paper, "--protocols", "clean").exit_code == 0
    (runs / "mnist-node-paper-seed0" / "evaluation.json").unlink()
    assert command(paper, "--protocols", "clean,ood").exit_code == 0
    path = paper / "results" / "images-mnist-node-paper-seed0.json"
    assert list(read_result(path).protocols) == ["clean", "ood:fashion-mnist"]
    marked = json.loads(path.read_text())
    marked["protocols"]["clean"]["provenance"]["wall_time_s"] = -1
    path.write_text(json.dumps(marked))
    assert command(paper, "--protocols", "clean", "--overwrite").exit_code == 0
    assert list(read_result(path).protocols) == ["clean", "ood:fashion-mnist"]
    assert json.loads(path.read_text())["protocols"]["clean"]["provenance"]["wall_time_s"] >= 0
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "weights_sha256": "0" * 64}))
    (runs / "mnist-node-paper-seed0" / "evaluation.json").unlink()
    refused = command(paper, "--protocols", "clean,fgsm")
    assert refused.exit_code == 2
    assert "other weights" in refused.output
    assert command(paper, "--protocols", "clean", "--overwrite").exit_code == 0
    assert list(read_result(path).protocols) == ["clean"]


@pytest.mark.usefixtures("no_pages")
def test_a_finished_run_takes_the_place_of_its_cell(tmp_path: Path) -> None:
    """As for the zoo, the cell is found by its settings, not by the name of the folder, and it is not trained again."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    assert command(paper, "--no-evaluate").exit_code == 0
    assert not (paper / "results").exists()
    source = tmp_path / "elsewhere"
    (tmp_path / "runs" / "mnist-node-paper-seed0").rename(source)
    result = command(paper, "--from-run", str(source), "--protocols", "clean")
    assert result.exit_code == 0, result.output
    assert "trained" in result.output
    assert (paper / "results" / "images-mnist-node-paper-seed0.json").exists()
    copied = tmp_path / "runs" / "mnist-node-paper-seed0" / "model.safetensors"
    assert copied.read_bytes() == (source / "model.safetensors").read_bytes()
    grid = load_grid(paper / "grid")
    copied.write_bytes(b"other")
    with pytest.raises(CheckpointError, match="already holds another run"):
        import_run(source, grid, tmp_path / "runs")
    config = json.loads((source / "config.json").read_text())
    config["train"]["lr"] = 0.05
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"no cell .* the nearest differs in lr: 0.1 -> 0.05"):
        import_run(source, grid, tmp_path / "other")
    (source / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no finished run"):
        import_run(source, grid, tmp_path / "other")


@pytest.mark.usefixtures("no_pages")
def test_a_run_with_other_settings_is_not_taken_for_the_cell(tmp_path: Path) -> None:
    paper = tiny_paper(tmp_path / "paper", ("node",))
    assert command(paper, "--no-evaluate").exit_code == 0
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("epochs = 2", "epochs = 3"))
    result = command(paper, "--protocols", "clean")
    assert result.exit_code == 2
    assert "epochs: 3 -> 2" in result.output


@pytest.mark.usefixtures("no_pages")
def test_a_trial_never_counts(tmp_path: Path) -> None:
    """A trial has a separate folder and a marked result file, and makes no tables; only a trial may limit the test set."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    result = command(paper, "--set", "epochs=1", "--limit", "4", "--protocols", "clean")
    assert result.exit_code == 0, result.output
    trial = json.loads((paper / "results" / "images-mnist-node-paper-seed0-trial.json").read_text())
    assert (trial["trial"], trial["epochs"]) == (["epochs=1"], 1)
    assert trial["protocols"]["clean"]["rows"][0]["n"] == 4
    assert not (paper / "README.md").exists()
    assert "missing" in command(paper, "--list").output
    assert command(paper, "--limit", "4").exit_code == 2


def test_results_elsewhere_make_no_pages(tmp_path: Path) -> None:
    """The pages of the repository show only the results in the repository."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    result = command(paper, "--protocols", "clean", "--out", str(tmp_path / "other"))
    assert result.exit_code == 0, result.output
    assert "no table was made" in result.output
    assert (tmp_path / "other" / "images-mnist-node-paper-seed0.json").exists()
    assert not (paper / "README.md").exists()


@pytest.mark.usefixtures("no_pages")
def test_a_failed_training_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE fails with a huge learning rate; LT-NODE is still trained, and the exit status reports the failure."""
    paper = tiny_paper(tmp_path / "paper")
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("epochs = 2", "epochs = 2\nlr = 1e30"))
    result = command(paper, "--presets", "paper", "--protocols", "clean")
    assert result.exit_code == 1, result.output
    assert "error: MNIST, NODE (paper), seed 0:" in result.output
    assert (paper / "results" / "images-mnist-lt-node-paper-seed0.json").exists()
    assert not (paper / "results" / "images-mnist-node-paper-seed0.json").exists()


def test_mistakes_on_the_command_line(tmp_path: Path) -> None:
    paper = tiny_paper(tmp_path / "paper", ("node",))
    assert "unknown protocol" in command(paper, "--protocols", "clena").output
    assert "expected whole numbers" in command(paper, "--seeds", "x").output
    outside = CliRunner().invoke(APP, ["reproduce", "images", "--paper", str(tmp_path / "nowhere"), "--list"])
    assert outside.exit_code == 2
    assert "runs from a clone" in " ".join(outside.output.split())


def test_tiny_sets_are_what_the_test_says() -> None:
    assert tiny_set("mnist").input_shape == (1, 8, 8)
