"""The experiments: what they measure, what they write, that they resume bit for bit, and that their verdicts can fail."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.data import gap_data, gap_grid
from ltnode.demo import demo
from ltnode.demo import training as demo_training
from ltnode.demo.gap import in_gap
from ltnode.errors import DataError, InputError, LTNodeError
from ltnode.models import LatentTimeODE
from ltnode.report.page import Page
from ltnode.report.published import Published
from ltnode.report.style import DARK, LIGHT, save_figure
from ltnode.training import load
from paper.reproduce import (
    findings,
    motivating,
    motivating_figure,
    selection,
    synthetic,
    synthetic_figures,
)

APP = make_app()


def colours(picture: Path | bytes) -> int:
    """Number of different colours in a picture; a blank one has 1."""
    with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
        found = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert found is not None
    return len(found)


def check_self_contained(page: str) -> None:
    """Every address of the page is a data URI: nothing is requested from anywhere."""
    addresses = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search(r"url\(|@import|<script", page)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's experiment on 40 points with 2 sets of end-times: the same code in a second."""
    for module in (synthetic, selection, synthetic_figures):
        monkeypatch.setattr(module, "POINTS", 40)
    monkeypatch.setattr(synthetic, "TIME_SETS", 2)


# -- the demo ------------------------------------------------------------------------------------------------------------------


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
    """RMSE and spreads recomputed from the saved model; tolerance of float32 sums over 300 points."""
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
    """After 3 steps nothing fits: the demo must say so, for the two models it checks."""
    _, result = demo_result
    sentences = demo.verdicts(result.rows)
    assert [good for good, _ in sentences] == [False, False]
    assert "LT-NODE misses: training RMSE" in sentences[0][1]
    good = demo.Row("lt-node", "LT-NODE", 0.11, 0.01, 0.05, "", 0.0, 7, 1.0)
    assert demo.verdicts([good])[0][0]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("std_data", "std_gap", "missed"), [(0.1, 0.19, True), (0.1, 0.21, False), (0.0, 0.0, True)])
def test_the_bounds_of_the_demo(std_data: float, std_gap: float, missed: bool) -> None:
    """A stub whose spread is known: twice that on the data passes, less does not, none at all does not."""

    class Spread:
        end_time = None

        def predict(self, x: torch.Tensor) -> Any:
            spread = torch.where(x[:, 0].abs() < 0.5, std_gap, std_data)
            mean = torch.cos(4 * x[:, 0] + 0.8)
            return type("P", (), {"mean": mean, "std": spread, "stats": None})

    row = demo.look(Spread(), "lt-node", gap_data(300), 0.0)  # type: ignore[arg-type]
    assert (len(row.misses) == 1) == missed


def test_processes_give_the_same_models_as_one_process(tmp_path: Path, demo_result: tuple[Path, demo.DemoResult]) -> None:
    """Two spawned processes, the same bytes: the demo's numbers do not depend on the machine's cores. Progress is told."""
    told: list[tuple[str, int]] = []
    result = demo.run_demo(tmp_path, ("node", "lt-node"), steps=3, jobs=2, watch=lambda name, step: told.append((name, step)))
    assert {name for name, _ in told} == {"node", "lt-node"}
    for row in result.rows:
        ours, theirs = (folder / "runs" / row.model / "model.safetensors" for folder in (tmp_path, demo_result[0]))
        assert ours.read_bytes() == theirs.read_bytes()


def test_where_processes_cannot_start_the_demo_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise BrokenProcessPool("no processes here")

    monkeypatch.setattr(demo_training.ProcessPoolExecutor, "submit", broken)
    result = demo.run_demo(tmp_path, ("node",), steps=2, jobs=2)
    assert result.rows[0].model == "node"


def test_a_failed_training_stops_the_demo_with_its_message(tmp_path: Path) -> None:
    """A folder that holds something else is not touched."""
    (tmp_path / "runs" / "node").mkdir(parents=True)
    (tmp_path / "runs" / "node" / "precious.txt").write_text("mine")
    with pytest.raises(LTNodeError, match="NODE: .*not a run folder"):
        demo.run_demo(tmp_path, ("node",), steps=1, jobs=1)
    assert (tmp_path / "runs" / "node" / "precious.txt").read_text() == "mine"
    with pytest.raises(InputError, match="Did you mean 'node'"):
        demo.run_demo(tmp_path, ("nod",), steps=1)


def test_the_demo_command_replaces_an_earlier_demo(tmp_path: Path) -> None:
    """Table, misses and address on standard output, status 0 even where a model misses; runs of an earlier demo are replaced."""
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


# -- the paper's 1-D experiment ------------------------------------------------------------------------------------------------


def test_the_paper_s_networks_and_schedule() -> None:
    """Parameter counts of the described networks, and the published schedule, whatever the presets become."""
    counts = {}
    ours = {name: variant for name, variant in synthetic.VARIANTS.items() if name not in ("sde-net", "node-gp")}
    for name, variant in ours.items():
        model = variant.build(0)
        parts = (model.stem, model.field, model.head, model.end_time)
        counts[name] = sum(p.numel() for part in parts for p in part.parameters())
        config = variant.config(0, synthetic.ITERATIONS)
        assert (config.optimizer, config.lr, config.momentum, config.batch_size) == ("sgd", 1e-3, 0.9, None)
        assert (config.epochs, config.milestones, config.decay) == (3000, (1000, 2000), 0.1)
        assert not model.end_time.learnable or not model.end_time.truncate
    assert counts == {"lt-node": 69_953, "alt-node": 72_903, "uni-node": 69_951, "node": 69_951, "lt-node-prior-1-0.01": 69_953}
    assert synthetic.VARIANTS["lt-node-prior-1-0.01"].build(0).end_time.prior.tolist() == pytest.approx([1, 0.01])
    assert synthetic.POINTS == 1500


def interrupting(variant: synthetic.Variant, after: int) -> synthetic.Variant:
    """The variant, but its training gets a SIGINT after some steps."""

    class Interrupting(synthetic.Variant):
        def build(self, seed: int) -> LatentTimeODE:
            model = super().build(seed)
            steps = iter(range(1, 1_000_000))
            constrain = model.after_step

            def after_step() -> None:
                constrain()
                if next(steps) == after:
                    signal.raise_signal(signal.SIGINT)

            model.after_step = after_step  # type: ignore[method-assign]
            return model

    return Interrupting(variant.name, variant.model, variant.prior, variant.title)


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
def test_an_interrupted_reproduction_ends_bit_identical(
    name: str, small: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped after 3 of 6 steps and run again: the log says from where, and weights and results are those of one go."""
    variant = synthetic.VARIANTS[name]
    whole = synthetic.reproduce(variant, 0, tmp_path / "a", tmp_path / "runs-a", iterations=6)
    with pytest.raises(KeyboardInterrupt):
        synthetic.reproduce(interrupting(variant, 3), 0, tmp_path / "b", tmp_path / "runs-b", iterations=6)
    assert not (tmp_path / "b").exists()
    with caplog.at_level(logging.INFO, logger="ltnode"):
        resumed = synthetic.reproduce(variant, 0, tmp_path / "b", tmp_path / "runs-b", iterations=6)
    assert "resumed from step 3" in caplog.text
    stem = synthetic.result_name(name, 0, 6)
    weights = [(tmp_path / runs / stem / "model.safetensors").read_bytes() for runs in ("runs-a", "runs-b")]
    assert weights[0] == weights[1]
    provenances = [result.pop("provenance") for result in (whole, resumed)]
    assert whole == resumed
    assert provenances[0]["config_hash"] == provenances[1]["config_hash"]
    assert json.loads((tmp_path / "b" / f"{stem}.json").read_text())["fit"] == whole["fit"]


def test_what_is_measured(small: None) -> None:
    """Entropy, fit and spread recomputed from single predictions; the model's BatchNorm buffers are left as they were."""
    model, data = synthetic.VARIANTS["lt-node"].build(1).eval(), gap_data(40)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = synthetic.measure(model, data)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    grid = gap_grid()
    for k in range(2):
        members = model.predict(grid, 10, "random", k, "adaptive").member_means.double()
        variance = members.var(dim=0, correction=0)[in_gap(grid)]
        expected = (0.5 * torch.log(2 * math.pi * math.e * variance)).mean()
        assert found["entropy"]["model"]["sets"][k] == pytest.approx(float(expected), abs=1e-4)
        noise = 1.0  # of an untrained model: log_std starts at 0
        expected = (0.5 * torch.log(2 * math.pi * math.e * (variance + noise))).mean()
        assert found["entropy"]["with_noise"]["sets"][k] == pytest.approx(float(expected), abs=1e-4)
    assert found["posterior"]["alpha"] == 1
    assert len(found["fit"]["times"]) == len(found["fit"]["train"]["rmse_of_members"]) == 10
    assert found["fit"]["eval"]["rmse"] != found["fit"]["train"]["rmse"]
    assert synthetic.measure(synthetic.VARIANTS["node"].build(0).eval(), data)["entropy"]["model"] is None


@pytest.mark.parametrize("name", ["sde-net", "node-gp"])
def test_baselines_are_measured_by_the_same_quantities(name: str) -> None:
    """An untrained SDE-Net and NODE-GP: entropy and fit recomputed from their own predictions, no posterior over T."""
    variant = synthetic.VARIANTS[name]
    model, data = variant.build(0).eval(), gap_data(40)
    found = synthetic.measure(model, data)
    grid = gap_grid()
    members = model.predict(grid, 10, "random", 3).member_means.double()
    variance = members.var(dim=0, correction=0)[in_gap(grid)]
    expected = (0.5 * torch.log(2 * math.pi * math.e * variance)).mean()
    assert found["entropy"]["model"]["sets"][3] == pytest.approx(float(expected), abs=1e-4)
    mean = model.predict(data.train.x, 10, "random", 0).mean
    assert found["fit"]["eval"]["rmse"] == pytest.approx(float((mean - data.train.y).square().mean().sqrt()), rel=1e-5)
    assert found["posterior"] is None
    assert "train" not in found["fit"]
    lines = findings.findings([{**result_of(name, -0.3), **found, "seed": 0}], [], PUBLISHED)
    assert verdict(lines, "fit RMSE") == "not published"
    assert variant.config(0, 3000).epochs == (600 if name == "node-gp" else 3000)


def test_the_command_reports_what_is_there_and_lists_what_is_missing(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model and the selection at 2 iterations: table, figures that are not blank, the missing ones by name."""
    monkeypatch.setattr(selection, "TIMES", (0.5, 1.0))
    monkeypatch.setattr(synthetic_figures, "TIMES", (0.5, 1.0))
    words = ["reproduce", "synthetic", "--models", "lt-node", "--iterations", "2"]
    folders = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(APP, words + folders)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "synthetic-alt-node-seed0-2it" in text.split("missing")[1]
    assert "synthetic-lt-node-seed0-2it" not in text.split("missing")[1]
    assert "not the paper's 3000" in text
    for stem in ("synthetic-predictions", "synthetic-posteriors", "selection"):
        assert colours(tmp_path / "results" / f"{stem}.png") > 50
    assert (
        "| LT-NODE, prior (2, 0.5): learnt posterior | Gamma(1.27, 0.98) |"
        in (tmp_path / "results" / "synthetic-2it.md").read_text()
    )
    times = (tmp_path / "results" / "synthetic-lt-node-seed0-2it.json").stat().st_mtime_ns
    again = CliRunner().invoke(APP, [*words, *folders, "--report-only"])
    assert again.exit_code == 0
    assert (tmp_path / "results" / "synthetic-lt-node-seed0-2it.json").stat().st_mtime_ns == times


def result_of(variant: str, entropy: float, spread: float = 0.1, **changes: Any) -> dict[str, Any]:
    """A result as `synthetic.reproduce` writes it, with numbers that are easy to judge."""
    made = synthetic.VARIANTS[variant]
    sets = {"mean": entropy, "std": spread, "sets": [entropy - spread, entropy + spread]}
    return {
        "variant": variant,
        "title": made.title,
        "model": made.model,
        "prior": made.prior,
        "seed": 0,
        "entropy": {"model": sets, "with_noise": sets},
        "fit": {"eval": {"rmse": 0.1}, "train": {"rmse": 0.1}},
        "posterior": {"alpha": 1.27, "beta": 0.98, "tail": 0.1} if made.prior else None,
        "parameters": {"network_and_posterior": 10, "all": 11},
        **changes,
    }


PUBLISHED = {
    "entropy": {"lt-node": 2.42, "alt-node": 1.17, "uni-node": -0.65},
    "posterior": [{"prior": [2.0, 0.5], "learnt": [1.27, 0.98]}, {"prior": [1.0, 0.01], "learnt": [1.05, 0.99]}],
}


def verdict(lines: list[findings.Finding], quantity: str) -> str:
    return next(line.verdict for line in lines if quantity in line.quantity)


@pytest.mark.parametrize(
    ("entropy", "spread", "expected"),
    [(2.42, 0.0, "reproduced"), (2.2, 0.0, "reproduced"), (-0.4, 0.5, "missed"), (1.5, 0.6, "reproduced")],
)
def test_an_entropy_is_judged_by_its_spread(entropy: float, spread: float, expected: str) -> None:
    """Within 0.25 nats or two standard deviations over sets of end-times; a miss has a reason."""
    lines = findings.findings([result_of("lt-node", entropy, spread)], [], PUBLISHED)
    line = next(line for line in lines if "model variance" in line.quantity)
    assert (line.paper, line.verdict) == ("2.42", expected)
    assert bool(line.reason) == (expected == "missed")


def test_the_other_verdicts_can_go_both_ways() -> None:
    good = [result_of("lt-node", 2.4), result_of("alt-node", 1.2), result_of("uni-node", -0.6, fit=_fit(0.3))]
    bad = [
        result_of("lt-node", -1.0, posterior={"alpha": 2.0, "beta": 0.5, "tail": 0.5}, fit=_fit(0.3, 0.1)),
        result_of("alt-node", 1.2),
        result_of("uni-node", -0.6),
        result_of("lt-node-prior-1-0.01", 0.0, posterior={"alpha": 1.05, "beta": 0.9, "tail": 0.1}),
    ]
    same = [result_of("lt-node", 0.0), result_of("lt-node-prior-1-0.01", 0.0, posterior={"alpha": 1.1, "beta": 0.9, "tail": 0.1})]
    lines, others = (findings.findings(results, [], PUBLISHED) for results in (good, bad))
    assert verdict(lines, "order of E") == "reproduced"
    assert verdict(others, "order of E") == "missed"
    assert verdict(lines, "(2, 0.5): learnt posterior") == "reproduced"
    assert verdict(others, "(2, 0.5): learnt posterior") == "missed"
    assert verdict(others, "(1, 0.01): learnt posterior") == "reproduced"
    assert verdict(lines, "does not fit") == "reproduced"
    assert verdict(others, "does not fit") == "missed"
    assert verdict(others, "whatever the prior") == "missed"
    assert verdict(findings.findings(same, [], PUBLISHED), "whatever the prior") == "reproduced"
    assert verdict(lines, "ALT-NODE: fit RMSE") == "both modes agree"
    assert verdict(others, "(2, 0.5): fit RMSE") == "eval mode is not the trained field"
    assert findings.findings([result_of("lt-node", 1.0)], [], {})[0].verdict == "not published"


def _fit(running: float, batch: float | None = None) -> dict[str, Any]:
    return {"eval": {"rmse": running}, "train": {"rmse": running if batch is None else batch}}


def selected(errors: dict[float, float]) -> list[dict[str, Any]]:
    return [{"time": t, "seed": 0, "n_validation": 300, "validation_rmse": {"eval": e, "train": e}} for t, e in errors.items()]


def test_selection_is_judged_by_the_validation_errors() -> None:
    """q = Gamma(1.27, 0.98) has most mass near 0.25 to 1: supported where small T is best, not where T = 3 is."""
    small_is_best = {0.25: 0.100, 0.5: 0.101, 1.0: 0.12, 2.0: 0.2, 3.0: 0.3}
    found = selection.judge(selected(small_is_best), 1.27, 0.98)
    assert found.best_time == 0.25
    assert found.indistinguishable == (0.25, 0.5)
    assert sum(found.posterior_mass) == pytest.approx(1)
    favoured = selection.TIMES[max(range(5), key=found.posterior_mass.__getitem__)]
    assert found.text.startswith("supported" if favoured in (0.25, 0.5) else "not supported")
    large_is_best = dict(zip(small_is_best, [0.3, 0.2, 0.15, 0.12, 0.1], strict=True))
    assert selection.judge(selected(large_is_best), 1.27, 0.98).text.startswith("not supported")
    assert "cannot tell" in selection.judge(selected(dict.fromkeys(small_is_best, 0.1)), 1.27, 0.98).text
    concentrated = selection.judge(selected(small_is_best), 100.0, 100.0)  # all mass near T = 1, which is worse
    assert concentrated.text.startswith("not supported")


def test_the_standard_error_of_an_rmse(generator: torch.Generator) -> None:
    """Against 4,000 simulated sets of 300 residuals: std of the RMSE within 5 %, four times its own sampling error."""
    rmse = (0.1 * torch.randn(4000, 300, generator=generator)).square().mean(dim=1).sqrt()
    assert float(rmse.std()) == pytest.approx(selection.standard_error(0.1, 300), rel=0.05)


def test_published_values() -> None:
    """The file of the repository has what the experiment needs."""
    published = Published.read().synthetic
    assert set(published["entropy"]) == {"lt-node", "alt-node", "uni-node", "sde-net", "node-gp"}
    assert {tuple(entry["prior"]) for entry in published["posterior"]} == {(2.0, 0.5), (1.0, 0.01)}
    assert Published().synthetic == {}


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match="x.json is damaged"):
        synthetic.read_results(tmp_path, ["x"])


# -- the motivating tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_node_keeps_the_order_of_points_on_the_line(seed: int) -> None:
    """The obstruction itself: whatever the weights, x < x' stays so, hence y = -x is out of reach and the classes stay nested.

    Weights are scaled up to make the flow strong; 1e-4 covers the solver's error at tolerance 1e-3 for near points.
    """
    x = torch.linspace(-1, 1, 101)[:, None]
    for task in ("reflection", "concentric-1d"):
        model = motivating.build_model(task, "node", seed)
        with torch.no_grad():
            for p in model.field.parameters():
                p.mul_(2.5)
        assert torch.equal(model.initial_state(x), x)
        states = model.solve(x, torch.tensor([1.0]), "adaptive").states[0, :, 0].detach()
        assert bool((states.diff() > -1e-4).all())


def test_models_of_the_motivating_tasks() -> None:
    """The state is the input itself, but for the control, which has one more dimension; reflection has no head to learn."""
    x = torch.randn(5, 2)
    assert torch.equal(motivating.build_model("concentric", "alt-node", 0).initial_state(x), x)
    augmented = motivating.build_model("concentric", "node-augmented", 0).initial_state(x)
    assert augmented.shape == (5, 3)
    assert torch.equal(augmented[:, 2], torch.zeros(5))
    assert not list(motivating.build_model("reflection", "node", 0).head.parameters())
    with pytest.raises(InputError, match="Did you mean 'node'"):
        motivating.build_model("reflection", "nod", 0)
    train, test = (getattr(motivating.training_data("concentric", 0), name) for name in ("train", "test"))
    assert (len(train), len(test)) == (500, 10_000)


def test_the_motivating_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps on fewer points: table, verdicts (which must be bad), a figure that is not blank, one result per run."""
    monkeypatch.setattr(motivating, "_FRESH", 50)
    monkeypatch.setattr(motivating_figure, "_SIDE", 10)
    words = ["reproduce", "motivating", "--seeds", "0", "--steps", "2", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(APP, words)
    assert result.exit_code == 0, result.output
    assert result.output.count("✗") == 3
    assert "0 of 1 seeds" in result.output
    assert colours(tmp_path / "motivating.png") > 100
    assert len((tmp_path / "motivating-2it.md").read_text().splitlines()) == 2 + 9
    assert len(list(tmp_path.glob("motivating-*-2it.json"))) == 9
    saved = json.loads((tmp_path / "motivating-reflection-node-seed0-2it.json").read_text())
    assert not saved["solved"]
    assert saved["scores"]["rmse"] > motivating.SUCCESS["reflection"]


def test_the_motivating_verdict_needs_both_halves() -> None:
    """ALT-NODE must solve it and NODE must not, on every seed."""

    def results(node: list[bool], alt: list[bool]) -> list[dict[str, Any]]:
        return [
            {"task": "reflection", "model": model, "seed": k, "solved": flag}
            for model, flags in (("node", node), ("alt-node", alt))
            for k, flag in enumerate(flags)
        ]

    assert motivating.verdicts(results([False, False], [True, True]))[0][0]
    assert not motivating.verdicts(results([False, True], [True, True]))[0][0]
    assert not motivating.verdicts(results([False, False], [True, False]))[0][0]
    assert motivating.verdicts([]) == []


# -- pages and figures ---------------------------------------------------------------------------------------------------------


def line_figure() -> Callable[..., Any]:
    from ltnode.report.style import new_figure

    def draw(theme: Any) -> Any:
        figure = new_figure(2.0, 1.0)
        figure.subplots().plot([0, 1], color=theme.of_model("lt-node-prior-1"))
        return figure

    return draw


def test_a_figure_is_the_same_every_time_and_has_two_themes(tmp_path: Path) -> None:
    """The same drawing gives the same bytes (no date, no random ids); dark is not light; matplotlib's settings come back."""
    import matplotlib

    before = matplotlib.rcParams["figure.facecolor"]
    a = save_figure(line_figure(), tmp_path / "a.b", alt="a line")
    b = save_figure(line_figure(), tmp_path / "b", alt="a line")
    assert a.light == b.light == (tmp_path / "a.b.svg").read_bytes()
    assert a.png.read_bytes() == b.png.read_bytes()
    assert DARK.background.encode() in a.dark
    assert DARK.background.encode() not in a.light
    assert matplotlib.rcParams["figure.facecolor"] == before
    assert LIGHT.of_model("lt-node-prior-1") == LIGHT.models["lt-node"]
    assert LIGHT.of_model("lt-node-mixture") == LIGHT.models["lt-node-mixture"]
    assert LIGHT.of_model("unheard-of") == LIGHT.hues[0]


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    """Texts are plain: markup in them is shown, not obeyed; words between backticks are code."""
    page = Page("a < b", "lead & more")
    page.heading("<script>")
    page.paragraph('say `x < y` and "quotes"')
    page.code("<b>")
    page.note("bad", good=False)
    page.table(("name", "value"), [("<i>", "1")])
    page.figure(save_figure(line_figure(), tmp_path / "f", alt='a "line"', caption="cap"))
    text = page.write(tmp_path / "sub" / "page.html").read_text()
    check_self_contained(text.replace("&lt;script&gt;", ""))
    assert "<h1>a &lt; b</h1>" in text
    assert "<code>x &lt; y</code>" in text
    assert "<pre><code>&lt;b&gt;</code></pre>" in text
    assert "<i>" not in text
    assert "<td>1</td>" in text
    assert 'alt="a &quot;line&quot;"' in text


def test_the_motivating_figure_shows_what_was_trained(tmp_path: Path) -> None:
    """From untrained models too; a task without models has no row."""
    network = motivating.build_model("reflection", "alt-node", 0)
    entry = motivating.Trained("reflection", "alt-node", 0, network, {"scores": {"rmse": 1.0}})
    assert colours(motivating_figure.draw(tmp_path, [entry]).png) > 50
