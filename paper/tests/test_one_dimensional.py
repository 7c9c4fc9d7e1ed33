"""The 1-D experiment: what it measures, that it resumes bit for bit, and what its command shows."""

from __future__ import annotations

import json
import logging
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import colours
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.data import gap_data, gap_grid
from ltnode.demo.gap import in_gap
from ltnode.errors import DataError
from ltnode.models import LatentTimeODE
from ltnode.report.published import Published
from paper.reproduce.one_dimensional import figures as synthetic_figures
from paper.reproduce.one_dimensional import findings, selection, synthetic

APP = make_app()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's experiment on 40 points with 2 sets of end-times: the same code in a second."""
    for module in (synthetic, selection, synthetic_figures):
        monkeypatch.setattr(module, "POINTS", 40)
    monkeypatch.setattr(synthetic, "TIME_SETS", 2)


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
