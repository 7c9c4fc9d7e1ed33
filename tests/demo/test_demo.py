"""The demo: what it measures, what it writes, and that a model that misses its goal is named."""

from __future__ import annotations

import json
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import check_self_contained, colours
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.data import gap_data, gap_grid
from ltnode.demo import demo, results
from ltnode.demo import training as demo_training
from ltnode.demo.gaussian_process import fit_gaussian_process
from ltnode.errors import InputError, LTNodeError
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


def test_without_matplotlib_the_demo_has_a_result_and_says_what_to_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install ltnode` alone: the command says so before it trains, and the page has everything but figures."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    shown = CliRunner().invoke(APP, ["demo", "--out", str(tmp_path), "--steps", "3", "--jobs", "1"])
    assert "Done in" in shown.stdout, shown.output
    warning, advice = "pip install 'ltnode[plot]'", "pip install 'ltnode[serve]'"
    assert warning in shown.stderr
    assert advice in shown.stdout.replace("\n", "")
    page = (tmp_path / "index.html").read_text()
    check_self_contained(page)
    assert "pip install &#x27;ltnode[plot]&#x27;" in page
    assert "<figure>" not in page
    assert "Fit RMSE" in page
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 4


def test_the_demo_measures_what_it_says(demo_result: tuple[Path, demo.DemoResult]) -> None:
    """All values are recomputed from the saved model; the tolerance is that of float32 sums over 300 and 800 points."""
    out, result = demo_result
    row = next(row for row in result.rows if row.model == "lt-node")
    model, data, grid = load(out / "runs" / "lt-node"), gap_data(demo_training.POINTS), gap_grid()
    on_data = model.predict(data.train.x)
    assert row.rmse == pytest.approx(float((on_data.mean - data.train.y).square().mean().sqrt()), rel=1e-5)
    x, along = grid[:, 0], model.predict(grid)
    std = (along.std.square() + along.noise_std.square()).sqrt()
    covered = (torch.cos(4 * x + 0.8) - along.mean).abs() <= 2 * std
    assert row.coverage == pytest.approx(float(covered.double().mean()), abs=1e-6)
    inside = ((x >= -1) & (x <= -0.7)) | ((x >= 0.5) & (x <= 1))
    assert row.on_data == pytest.approx(float(std[inside].mean()) / 0.1, rel=1e-5)
    gp_std = fit_gaussian_process(data.train.x, data.train.y).predict(grid)[1]
    assert row.off_data == pytest.approx(float(std[~inside].mean() / gp_std[~inside].mean()), rel=1e-5)


def test_the_gaussian_process_maximises_the_evidence() -> None:
    """Reference: scikit-learn's process, whose optimiser starts at our values. Steps of the grids are 8 and 12 %."""
    train, grid = gap_data(150, 3).train, gap_grid()[::20]
    ours = fit_gaussian_process(train.x, train.y)
    kernel = ConstantKernel(ours.amplitude) * RBF(ours.length) + WhiteKernel(ours.noise)
    oracle = GaussianProcessRegressor(kernel).fit(train.x.double().numpy(), train.y.double().numpy())
    amplitude, length, noise = (
        oracle.kernel_.k1.k1.constant_value,
        oracle.kernel_.k1.k2.length_scale,
        oracle.kernel_.k2.noise_level,
    )
    assert (ours.length, ours.noise) == (pytest.approx(length, rel=0.09), pytest.approx(noise, rel=0.06))
    assert ours.amplitude == pytest.approx(amplitude, rel=0.25)  # the evidence is flat along amplitude and length scale
    fixed = GaussianProcessRegressor(kernel, optimizer=None).fit(train.x.double().numpy(), train.y.double().numpy())
    for one, other in zip(ours.predict(grid.double()), fixed.predict(grid.double().numpy(), return_std=True), strict=True):
        torch.testing.assert_close(one, torch.as_tensor(other), rtol=1e-5, atol=1e-5)


def test_the_gaussian_process_itself_reaches_the_goals(demo_result: tuple[Path, demo.DemoResult]) -> None:
    process = demo_result[1].process
    assert (process.coverage, process.off_data) == (pytest.approx(1, abs=0.1), 1)
    assert process.on_data < 1.3


def test_a_model_that_misses_is_named(demo_result: tuple[Path, demo.DemoResult]) -> None:
    """After 3 steps nothing fits, and the demo must say so for the two models that it checks."""
    _, result = demo_result
    sentences = results.verdicts(result.rows)
    assert [good for good, _ in sentences] == [False, False]
    assert "LT-NODE misses: training RMSE" in sentences[0][1]
    good = results.Row("lt-node", "LT-NODE", 0.11, 0.95, 1.1, 1.2)
    assert results.verdicts([good])[0][0]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("shift", "on", "off", "missed"),
    [
        (0.0, 1.2, 1.4, None),
        (0.0, 1.4, 1.4, "on the data the std is 1.40 times the noise"),
        (0.0, 1.2, 1.6, "off the data the std is 1.60 times the Gaussian process's"),
        (9.0, 1.2, 1.4, "the true function lies within"),
    ],
)
def test_the_bounds_of_the_demo(shift: float, on: float, off: float, missed: str | None) -> None:
    """A stub whose bands and error off the data are known; bounds are 1.3 times the noise, 1.5 times the process and 90 %."""
    data = gap_data(300)
    process = fit_gaussian_process(data.train.x, data.train.y)

    class Known:
        end_time = None

        def predict(self, x: torch.Tensor) -> Any:
            inside = results.on_data(x)
            std = torch.where(inside, on * 0.1, off * process.predict(x)[1])
            mean = torch.where(inside, 0.0, shift) + torch.cos(4 * x[:, 0] + 0.8)
            return type("P", (), {"mean": mean, "total_std": std, "stats": None})

    row = results.measure(Known(), "lt-node", data, process, 0.0)  # type: ignore[arg-type]
    assert len(row.misses) == (missed is not None)
    assert missed is None or missed in row.misses[0]


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
    """Table, missed goals and address are on standard output, and the status is 1; runs of an earlier demo are replaced."""
    earlier = tmp_path / "runs" / "alt-node"
    earlier.mkdir(parents=True)
    (earlier / "config.json").write_text("{}")
    result = CliRunner().invoke(APP, ["demo", "--out", str(tmp_path), "--steps", "1", "--jobs", "1", "--seed", "1"])
    assert result.exit_code == 1, result.output
    assert all(title in result.output for title in ("Uni-NODE", "LT-NODE", "ALT-NODE", "Gaussian process on x", "±2 std"))
    assert "the demo misses the goals" in result.output
    assert "✗ LT-NODE misses" in result.output
    assert (tmp_path / "index.html").as_uri() in result.output
    assert f"serve {tmp_path}/runs" in "".join(result.output.split("\n"))
    assert "\x1b" not in result.output
    assert json.loads((earlier / "config.json").read_text())["train"]["seed"] == 1
