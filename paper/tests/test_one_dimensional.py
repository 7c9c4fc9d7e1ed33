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
from ltnode.errors import DataError
from ltnode.models import LatentTimeODE
from ltnode.report.gap import in_gap
from paper.reproduce.claims import one_dimensional as claims
from paper.reproduce.folder import CLONE
from paper.reproduce.one_dimensional import experiment, figures, measure, selection, table
from paper.reproduce.one_dimensional.selection import Support
from paper.reproduce.records import read_results

APP = make_app()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the experiment with 40 points and 2 sets of end-times, which takes a second."""
    for module in (experiment, selection, figures):
        monkeypatch.setattr(module, "POINTS", 40)
    monkeypatch.setattr(measure, "TIME_SETS", 2)


def test_the_paper_s_networks_and_schedule() -> None:
    """Parameter counts of the described networks and the published schedule, independently of the presets."""
    counts = {}
    ours = {name: variant for name, variant in experiment.VARIANTS.items() if name not in ("sde-net", "node-gp")}
    for name, variant in ours.items():
        model = variant.build(0)
        parts = (model.stem, model.field, model.head, model.end_time)
        counts[name] = sum(p.numel() for part in parts for p in part.parameters())
        config = variant.config(0, experiment.ITERATIONS)
        assert (config.optimizer, config.lr, config.momentum, config.batch_size) == ("sgd", 1e-3, 0.9, None)
        assert (config.epochs, config.milestones, config.decay) == (3000, (1000, 2000), 0.1)
        assert not model.end_time.learnable or not model.end_time.truncate
    assert counts == {"lt-node": 69_953, "alt-node": 72_903, "uni-node": 69_951, "node": 69_951, "lt-node-prior-1-0.01": 69_953}
    assert experiment.VARIANTS["lt-node-prior-1-0.01"].build(0).end_time.prior.tolist() == pytest.approx([1, 0.01])
    assert experiment.POINTS == 1500


def test_rows_of_their_own_change_one_thing() -> None:
    """Each row that tests a reason differs from the paper's row in what its title says, and in nothing else."""
    paper = {name: experiment.VARIANTS[name] for name in ("lt-node", "node-gp")}
    changes = {}
    for name, variant in experiment.OTHERS.items():
        other = paper[variant.model]
        config = variant.config(0, experiment.ITERATIONS)
        changes[name] = [text.partition(":")[0] for text in other.config(0, experiment.ITERATIONS).differences(config)]
        same = [a.equal(b) for a, b in zip(variant.build(0).parameters(), other.build(0).parameters(), strict=False)]
        assert all(same)
    assert changes == {
        "lt-node-known-noise": [],
        "lt-node-kl-0.1": ["model_options"],
        "lt-node-fast-posterior": ["role_lr"],
        "node-gp-longer": ["epochs"],
    }
    known = experiment.OTHERS["lt-node-known-noise"].build(0)
    assert float(known.likelihood.noise_std) == pytest.approx(0.1)
    assert sum(p.numel() for p in known.parameters()) == sum(p.numel() for p in paper["lt-node"].build(0).parameters()) - 1
    assert experiment.OTHERS["lt-node-kl-0.1"].build(0).objective.kl_weight == 0.1
    assert experiment.chosen([]) == list(experiment.VARIANTS.values())
    assert [variant.name for variant in experiment.chosen(["node-gp-longer"])] == ["node-gp-longer"]


def interrupting(variant: experiment.Variant, after: int) -> experiment.Variant:
    """Make a copy of the variant whose training raises SIGINT after some steps."""

    class Interrupting(experiment.Variant):
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
    """Stopped after 3 of 6 steps and resumed: the log names the step, and weights and results are those of a whole run."""
    variant = experiment.VARIANTS[name]
    whole = experiment.reproduce(variant, 0, tmp_path / "a", tmp_path / "runs-a", iterations=6)
    with pytest.raises(KeyboardInterrupt):
        experiment.reproduce(interrupting(variant, 3), 0, tmp_path / "b", tmp_path / "runs-b", iterations=6)
    assert not (tmp_path / "b").exists()
    with caplog.at_level(logging.INFO, logger="ltnode"):
        resumed = experiment.reproduce(variant, 0, tmp_path / "b", tmp_path / "runs-b", iterations=6)
    assert "resumed from step 3" in caplog.text
    stem = experiment.result_name(name, 0, 6)
    weights = [(tmp_path / runs / stem / "model.safetensors").read_bytes() for runs in ("runs-a", "runs-b")]
    assert weights[0] == weights[1]
    provenances = [result.pop("provenance") for result in (whole, resumed)]
    assert whole == resumed
    assert provenances[0]["config_hash"] == provenances[1]["config_hash"]
    assert json.loads((tmp_path / "b" / f"{stem}.json").read_text())["fit"] == whole["fit"]


def test_what_is_measured(small: None) -> None:
    """Entropy, fit and spread are recomputed from single predictions; the BatchNorm buffers of the model do not change."""
    model, data = experiment.VARIANTS["lt-node"].build(1).eval(), gap_data(40)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure.measure(model, data)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    grid = gap_grid()
    for k in range(2):
        members = model.predict(grid, 10, "random", k, "adaptive").member_means.double()
        variance = members.var(dim=0, correction=0)[in_gap(grid)]
        expected = (0.5 * torch.log(2 * math.pi * math.e * variance)).mean()
        assert found["entropy"]["model"]["sets"][k] == pytest.approx(float(expected), abs=1e-4)
        noise = 1.0  # log_std of an untrained model is 0
        expected = (0.5 * torch.log(2 * math.pi * math.e * (variance + noise))).mean()
        assert found["entropy"]["with_noise"]["sets"][k] == pytest.approx(float(expected), abs=1e-4)
    assert found["posterior"]["alpha"] == 1
    assert len(found["fit"]["times"]) == len(found["fit"]["train"]["rmse_of_members"]) == 10
    assert found["fit"]["eval"]["rmse"] != found["fit"]["train"]["rmse"]
    assert measure.measure(experiment.VARIANTS["node"].build(0).eval(), data)["entropy"]["model"] is None


@pytest.mark.parametrize("name", ["sde-net", "node-gp"])
def test_baselines_are_measured_by_the_same_quantities(name: str) -> None:
    """Entropy and fit of an untrained SDE-Net and NODE-GP are recomputed from their predictions; they have no posterior."""
    variant = experiment.VARIANTS[name]
    model, data = variant.build(0).eval(), gap_data(40)
    found = measure.measure(model, data)
    grid = gap_grid()
    members = model.predict(grid, 10, "random", 3).member_means.double()
    variance = members.var(dim=0, correction=0)[in_gap(grid)]
    expected = (0.5 * torch.log(2 * math.pi * math.e * variance)).mean()
    assert found["entropy"]["model"]["sets"][3] == pytest.approx(float(expected), abs=1e-4)
    mean = model.predict(data.train.x, 10, "random", 0).mean
    assert found["fit"]["eval"]["rmse"] == pytest.approx(float((mean - data.train.y).square().mean().sqrt()), rel=1e-5)
    assert found["posterior"] is None
    assert "train" not in found["fit"]
    row = dict(
        zip(table.HEADER, table.measurement_rows([{"variant": name, "title": "x", "model": name, **found}])[0], strict=True)
    )
    assert row["fit RMSE"] == f"{found['fit']['eval']['rmse']:.3f}"
    assert row["with batch statistics"] == row["learnt q(T)"] == "–"
    assert variant.config(0, 3000).epochs == (600 if name == "node-gp" else 3000)


def test_the_command_reports_what_is_there_and_lists_what_is_missing(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model and the selection with 2 iterations: tables, figures that are not blank, and the names of missing results."""
    for module in (selection, figures, claims):
        monkeypatch.setattr(module, "TIMES", (0.5, 1.0))
    words = ["reproduce", "synthetic", "--models", "lt-node", "--iterations", "2"]
    folders = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(APP, words + folders)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "synthetic-alt-node-seed0-2it" in text.split("missing (run")[1]
    assert "synthetic-lt-node-seed0-2it" not in text.split("missing (run")[1]
    assert "not the paper's 3000" in text
    for stem in ("synthetic-predictions", "synthetic-posteriors", "selection"):
        assert colours(tmp_path / "results" / f"{stem}.png") > 50
    page = (tmp_path / "results" / "synthetic-2it.md").read_text()
    assert "| LT-NODE with prior Gamma(2, 0.5): learnt posterior | Gamma(1.27, 0.98) |" in page
    assert "| LT-NODE, prior (2, 0.5) |" in page
    assert "NODE-GP: mean entropy" not in page  # nothing was measured
    times = (tmp_path / "results" / "synthetic-lt-node-seed0-2it.json").stat().st_mtime_ns
    again = CliRunner().invoke(APP, [*words, *folders, "--report-only"])
    assert again.exit_code == 0
    assert (tmp_path / "results" / "synthetic-lt-node-seed0-2it.json").stat().st_mtime_ns == times


def test_the_table_of_measurements_averages_over_seeds() -> None:
    """LT-NODE with two seeds: entropies over all sets, both modes of BatchNorm, posterior, tail, and parameters of the noise."""
    results = [
        {
            "variant": "lt-node",
            "title": "LT-NODE, prior (2, 0.5)",
            "model": "lt-node",
            "entropy": {"model": {"sets": [seed + 1.0, seed + 3.0]}, "with_noise": {"sets": [4.0]}},
            "fit": {"eval": {"rmse": 0.3}, "train": {"rmse": 0.1 + 0.1 * seed}},
            "posterior": {"alpha": 1.27, "beta": 0.98, "mean": 1.3, "tail": 0.1},
            "parameters": {"network_and_posterior": 69_953, "all": 69_954},
        }
        for seed in (0, 1)
    ]
    expected = ["2.50 ± 1.12", "4.00 ± 0.00", "0.300", "0.150", "Gamma(1.27, 0.98), mean 1.30", "0.10", "69,953 + 1"]
    assert table.measurement_rows(results) == [["LT-NODE, prior (2, 0.5)", *expected]]


def selected(errors: dict[float, float]) -> list[dict[str, Any]]:
    return [{"time": t, "seed": 0, "n_validation": 300, "validation_rmse": {"eval": e, "train": e}} for t, e in errors.items()]


def test_selection_is_judged_by_the_validation_errors() -> None:
    """q = Gamma(1.27, 0.98) has most mass near 0.25 to 1: supported if small T is best, not if T = 3 is."""
    small_is_best = {0.25: 0.100, 0.5: 0.101, 1.0: 0.12, 2.0: 0.2, 3.0: 0.3}
    found = selection.compare(selected(small_is_best), 1.27, 0.98)
    assert found.best_time == 0.25
    assert found.indistinguishable == (0.25, 0.5)
    assert sum(found.posterior_mass) == pytest.approx(1)
    favoured = selection.TIMES[max(range(5), key=found.posterior_mass.__getitem__)]
    assert found.favoured == favoured
    assert found.support is (Support.SUPPORTED if favoured in (0.25, 0.5) else Support.NOT_SUPPORTED)
    large_is_best = dict(zip(small_is_best, [0.3, 0.2, 0.15, 0.12, 0.1], strict=True))
    assert selection.compare(selected(large_is_best), 1.27, 0.98).support is Support.NOT_SUPPORTED
    alike = selection.compare(selected(dict.fromkeys(small_is_best, 0.1)), 1.27, 0.98)
    assert alike.support is Support.UNDECIDED
    assert "cannot distinguish" in alike.text
    concentrated = selection.compare(selected(small_is_best), 100.0, 100.0)  # all mass near T = 1, which is worse
    assert concentrated.support is Support.NOT_SUPPORTED
    assert concentrated.text == "not supported: q(T) has most mass near T = 1, but the best end-times are 0.25, 0.5"


def test_the_standard_error_of_an_rmse(generator: torch.Generator) -> None:
    """Compared with 4,000 simulated sets of 300 residuals; the tolerance of 5 % is four times the sampling error of the std."""
    rmse = (0.1 * torch.randn(4000, 300, generator=generator)).square().mean(dim=1).sqrt()
    assert float(rmse.std()) == pytest.approx(selection.standard_error(0.1, 300), rel=0.05)


def test_published_values() -> None:
    """The file of the repository has what the experiment needs."""
    published = CLONE.published()
    assert set(published.gap_entropies) == {"lt-node", "alt-node", "uni-node", "sde-net", "node-gp"}
    assert all(published.learnt_posterior(prior) is not None for prior in ((2.0, 0.5), (1.0, 0.01)))


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match="x.json is damaged"):
        read_results(tmp_path, ["x"])
