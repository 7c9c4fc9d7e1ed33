"""The demo: what it measures, what it writes, and that a model that misses its goal is named."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import check_self_contained, colours
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.data import gap_data, gap_grid
from ltnode.demo import demo, results
from ltnode.demo import training as demo_training
from ltnode.errors import InputError, LTNodeError
from ltnode.report.gap import in_gap
from ltnode.training import load

APP = make_app()


@pytest.fixture(scope="module")
def demo_result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, demo.DemoResult]:
    out = tmp_path_factory.mktemp("demo")
    return out, demo.run_demo(out, steps=3, jobs=1)


def test_the_demo_writes_runs_figures_results_and_a_page(demo_result: tuple[Path, demo.DemoResult]) -> None:
    out, result = demo_result
    assert [row.model for row in result.rows] == list(demo.DEFAULT_MODELS)
    for name in demo.DEFAULT_MODELS:
        assert load(out / "runs" / name).task == "regression"
    for stem in ("predictions", "posterior"):
        assert colours(out / "figures" / f"{stem}.png") > 100
        assert (out / "figures" / f"{stem}.svg").read_text().count("<path") > 20
    saved = json.loads((out / "results.json").read_text())
    assert [row["model"] for row in saved["rows"]] == list(demo.DEFAULT_MODELS)
    assert saved["provenance"]["seed"] == 0
    page = (out / "index.html").read_text()
    check_self_contained(page)
    assert "prefers-color-scheme: dark" in page
    assert all(row.title in page for row in result.rows)
    assert "default network" in page
    assert "Adam" in page


def test_the_demo_measures_what_it_says(demo_result: tuple[Path, demo.DemoResult]) -> None:
    """RMSE and spreads are recomputed from the saved model; the tolerance is that of float32 sums over 300 points."""
    out, result = demo_result
    row = next(row for row in result.rows if row.model == "lt-node")
    model, data, grid = load(out / "runs" / "lt-node"), gap_data(demo_training.POINTS), gap_grid()
    on_data = model.predict(data.train.x)
    assert row.rmse == pytest.approx(float((on_data.mean - data.train.y).square().mean().sqrt()), rel=1e-5)
    assert row.std_data == pytest.approx(float(on_data.member_means.std(dim=0, correction=0).mean()), rel=1e-5)
    inside = grid[(grid > -0.5) & (grid < 0.5)][:, None]
    assert len(inside) == int(in_gap(grid).sum()) == 199
    assert row.std_gap == pytest.approx(float(model.predict(inside).std.mean()), rel=1e-4)
    node = result.rows[0]
    assert (node.std_data, node.std_gap, node.ratio, node.tail) == (0, 0, None, 0)


def test_a_model_that_misses_is_named(demo_result: tuple[Path, demo.DemoResult]) -> None:
    """After 3 steps nothing fits, and the demo must say so for the two models that it checks."""
    _, result = demo_result
    sentences = results.verdicts(result.rows)
    assert [good for good, _ in sentences] == [False, False]
    assert "LT-NODE misses: training RMSE" in sentences[0][1]
    good = results.Row("lt-node", "LT-NODE", 0.11, 0.01, 0.05, "", 0.0, 7, 1.0)
    assert results.verdicts([good])[0][0]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("std_data", "std_gap", "missed"), [(0.1, 0.19, True), (0.1, 0.21, False), (0.0, 0.0, True)])
def test_the_bounds_of_the_demo(std_data: float, std_gap: float, missed: bool) -> None:
    """A stub with a known spread: twice the spread on the data passes; less, or no spread at all, fails."""

    class Spread:
        end_time = None

        def predict(self, x: torch.Tensor) -> Any:
            spread = torch.where(x[:, 0].abs() < 0.5, std_gap, std_data)
            mean = torch.cos(4 * x[:, 0] + 0.8)
            return type("P", (), {"mean": mean, "std": spread, "stats": None})

    row = results.measure(Spread(), "lt-node", gap_data(300), 0.0)  # type: ignore[arg-type]
    assert (len(row.misses) == 1) == missed


def test_processes_give_the_same_models_as_one_process(tmp_path: Path, demo_result: tuple[Path, demo.DemoResult]) -> None:
    """Two spawned processes write the same bytes, so the numbers do not depend on the number of cores. Progress is reported."""
    reported: list[tuple[str, int]] = []
    result = demo.run_demo(tmp_path, ("node", "lt-node"), steps=3, jobs=2, watch=lambda name, step: reported.append((name, step)))
    assert {name for name, _ in reported} == {"node", "lt-node"}
    for row in result.rows:
        ours, theirs = (folder / "runs" / row.model / "model.safetensors" for folder in (tmp_path, demo_result[0]))
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_demo_trains_in_turn_if_processes_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise BrokenProcessPool("no processes here")

    monkeypatch.setattr(demo_training.ProcessPoolExecutor, "submit", broken)
    result = demo.run_demo(tmp_path, ("node",), steps=2, jobs=2)
    assert result.rows[0].model == "node"


def test_a_failed_training_stops_the_demo_with_its_message(tmp_path: Path) -> None:
    """A folder with other files does not change."""
    (tmp_path / "runs" / "node").mkdir(parents=True)
    (tmp_path / "runs" / "node" / "precious.txt").write_text("mine")
    with pytest.raises(LTNodeError, match="NODE: .*not a run folder"):
        demo.run_demo(tmp_path, ("node",), steps=1, jobs=1)
    assert (tmp_path / "runs" / "node" / "precious.txt").read_text() == "mine"
    with pytest.raises(InputError, match="Did you mean 'node'"):
        demo.run_demo(tmp_path, ("nod",), steps=1)


def test_the_demo_command_replaces_an_earlier_demo(tmp_path: Path) -> None:
    """Table, missed goals and address are on standard output, the status is 0 anyway; runs of an earlier demo are replaced."""
    earlier = tmp_path / "runs" / "alt-node"
    earlier.mkdir(parents=True)
    (earlier / "config.json").write_text("{}")
    result = CliRunner().invoke(APP, ["demo", "--out", str(tmp_path), "--steps", "1", "--jobs", "1", "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert all(title in result.output for title in ("Uni-NODE", "LT-NODE", "ALT-NODE", "std on"))
    assert "✗ LT-NODE misses" in result.output
    assert (tmp_path / "index.html").as_uri() in result.output
    assert f"serve {tmp_path}/runs" in "".join(result.output.split("\n"))
    assert "\x1b" not in result.output
    assert json.loads((earlier / "config.json").read_text())["train"]["seed"] == 1
