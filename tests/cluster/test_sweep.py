"""Sweeps on this machine: selection, interruption, failures, and the command."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from in_this_process import InThisProcess
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.cli.commands.sweep import live_table
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Executor
from ltnode.cluster.spec import Range, SweepSpec
from ltnode.cluster.sweep import Sweep, SweepResult, Trial
from ltnode.cluster.sweep_report import _label_values, write_report
from ltnode.errors import ConfigError, MissingExtraError

RANGE = {"model": "lt-node", "data": "synthetic", "seeds": [0, 1], "trials": 12}
LOG_RANGE = {"lr": {"low": 0.0001, "high": 0.3, "log": True}, "weight_decay": [0.0, 0.1]}
SPEC: dict[str, Any] = {**RANGE, "search": LOG_RANGE}


@pytest.fixture(autouse=True)
def _stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2]}")


def run_stub(out: Path, executor: Executor, function: str = "stub", **changes: Any) -> SweepResult:
    spec = SweepSpec.of({**SPEC, **changes})
    return Sweep(spec, out, executor, function=f"stub_trial:{function}").run()


@pytest.mark.parametrize("strategy", ["random", "bayesian"])
def test_an_interrupted_search_equals_an_uninterrupted_one(tmp_path: Path, strategy: str) -> None:
    """Killed after 5 of 24 trainings and continued, it asks for the same points, and trains nothing twice.

    Equality is exact: the sampler of a point is seeded by its number. A Bayesian search sees the same history only with one
    training at a time in order, which this engine guarantees.
    """
    whole = run_stub(tmp_path / "whole", InThisProcess(), strategy=strategy)
    first, second = InThisProcess(most=5), InThisProcess()
    with pytest.raises(KeyboardInterrupt):
        run_stub(tmp_path / "parts", first, strategy=strategy)
    parts = run_stub(tmp_path / "parts", second, strategy=strategy)
    assert not set(first.ran) & set(second.ran)
    assert len(first.ran) + len(second.ran) == 24 == len(whole.trials)
    if strategy == "random":
        assert [trial.values for trial in parts.trials] == [trial.values for trial in whole.trials]
    third = InThisProcess()
    assert run_stub(tmp_path / "parts", third, strategy=strategy).trials == parts.trials
    assert third.ran == []


def test_the_best_run_has_the_best_mean_over_seeds() -> None:
    """A point with one lucky seed loses against a point that is better on average, and an incomplete one never wins."""
    scores = {(0, 0): -0.1, (0, 1): -0.9, (1, 0): -0.4, (1, 1): -0.3, (2, 0): 5.0, (2, 1): None}
    trials = [
        Trial(f"{point}-{seed}", point, "d", seed, {}, "failed" if score is None else "complete", score)
        for (point, seed), score in scores.items()
    ]
    best = SweepResult(trials, 6).best("d")
    assert best is not None
    assert best.name == "1-1"
    assert SweepResult(trials[4:], 2).best("d") is None


def test_a_bayesian_search_beats_its_first_points_and_tells_what_matters(tmp_path: Path) -> None:
    """The value depends on lr alone, so lr must have nearly all of the importance."""
    result = run_stub(tmp_path / "s", InThisProcess(), trials=40, seeds=[0])
    assert result.importance["lr"] > 0.8
    best = result.best("synthetic")
    assert best is not None
    assert abs(math.log10(best.values["lr"] / 0.03)) < 0.1  # 40 points on 3.5 decades: an even grid comes within 0.045
    page = write_report(SweepSpec.of({**SPEC, "trials": 40, "seeds": [0]}), result, tmp_path / "s")
    text = page.read_text()
    assert best.name in text
    assert "Importance" in text
    assert (tmp_path / "s" / "figures" / "values-synthetic.png").stat().st_size > 0


def test_failures_are_reported_and_do_not_end_the_sweep(tmp_path: Path) -> None:
    result = run_stub(tmp_path / "s", InThisProcess(), "stub_that_fails", strategy="random")
    failed = [trial for trial in result.trials if trial.status == "failed"]
    assert failed
    assert {trial.message for trial in failed} == {"ValueError: the rate is too large"}
    assert all(trial.values["lr"] > 0.05 for trial in failed)
    best = result.best("synthetic")
    assert best is not None
    assert best.values["lr"] <= 0.05
    rows = list(csv.DictReader((tmp_path / "s" / "trials.csv").open()))
    assert len(rows) == 24
    assert sum(row["status"] == "failed" for row in rows) == len(failed)


def test_dead_processes_are_replaced(tmp_path: Path) -> None:
    """Each worker of the local engine is killed at the first attempt of each task, and every task ends anyway."""
    with make_executor("local", jobs=2, device="cpu") as executor:
        result = run_stub(tmp_path / "s", executor, "stub_that_dies_once", trials=1, strategy="random")
    assert [trial.status for trial in result.trials] == ["complete"] * 2
    assert len(list((tmp_path / "s").glob("*.died"))) == 2


def test_a_folder_with_another_sweep_is_refused(tmp_path: Path) -> None:
    run_stub(tmp_path / "s", InThisProcess(), strategy="random")
    with pytest.raises(ConfigError, match="another specification .*search_seed"):
        run_stub(tmp_path / "s", InThisProcess(), strategy="random", search_seed=1)


def test_the_live_table_keeps_its_size() -> None:
    trials = [Trial(f"t{n}", n, "d", 0, {"lr": 0.1}, "complete" if n < 900 else "running", -float(n)) for n in range(1000)]
    assert live_table(SweepResult(trials, 1000)).row_count == 12 + 5 + 1


def test_the_command_trains_run_folders_that_equal_those_of_train(tmp_path: Path) -> None:
    """One run folder per trial below --out, equal bit for bit to ``ltnode.fit`` alone, also through a storage by URL."""
    spec = tmp_path / "sweep.toml"
    spec.write_text(
        'model = "lt-node"\ndata = "synthetic"\n[train]\nepochs = 2\nlimit = 80\nlog_every = 1\ndevice = "cpu"\n'
        "[train.model_options]\nwidth = 8\n[search]\nlr = [0.01, 0.003]\n"
    )
    words = ["sweep", str(spec), "--out", str(tmp_path / "out"), "--jobs", "1", "--storage", f"file://{tmp_path}/store"]
    answer = CliRunner().invoke(make_app(), words)
    assert answer.exit_code == 0, answer.output
    assert "Best run: trial-000" in answer.output
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    folders = sorted(path.parent.name for path in (tmp_path / "out").glob("*/config.json"))
    assert folders == ["trial-0000-seed0", "trial-0001-seed0"]
    assert record["best"]["synthetic"] in folders
    data = ltnode.data.load("synthetic")
    for trial in record["trials"]:
        config = SweepSpec.read(spec).config(trial["values"], "synthetic", trial["seed"])
        ltnode.fit(ltnode.build("lt-node", data, seed=0, width=8), data, config, tmp_path / trial["name"])
        found = tmp_path / "out" / trial["name"] / "model.safetensors"
        assert found.read_bytes() == (tmp_path / trial["name"] / "model.safetensors").read_bytes()
    assert (tmp_path / "out" / "report.html").exists()


def test_without_ray_a_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ltnode\[cluster\]"):
        make_executor("ray")


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (Range(0.001, 0.1, True), ["0.001", "0.003", "0.01", "0.03", "0.1"]),
        (Range(1e-6, 1.0, True), ["1e-06", "0.0001", "0.01", "1"]),
        (Range(1, 4), ["1", "2", "3", "4"]),
        ((0.01, 0.0, [1, 2]), ["0.01", "0", "[1, 2]"]),
    ],
)
def test_the_values_of_a_key_have_few_labels_in_order(space: Any, shown: list[str]) -> None:
    """Round numbers that do not touch, whole ones for integers, and lists in the order of the specification."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(3, 2)).subplots()
    ends = (space.low, space.high) if isinstance(space, Range) else (0, len(space) - 1)
    axes.scatter(ends, (0, 1))
    _label_values(axes, space)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    formatter = axes.xaxis.get_major_formatter()
    formatter.set_locs(ticks)
    assert [formatter(tick, place) for place, tick in enumerate(ticks)] == shown
