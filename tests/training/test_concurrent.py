"""Concurrent runs: each must end as it would have ended alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.errors import ConfigError
from ltnode.training import RunStatus, TrainingError, fit_seeds
from ltnode.training.engine import Job, fit_together
from training.tiny import TIMING, TwoPhaseModel

APP = make_app()
SEEDS = (3, 0, 4)
DATA = ltnode.data.gap_data(40)


def config(**changes: Any) -> ltnode.TrainConfig:
    return ltnode.TrainConfig(epochs=3, batch_size=16, device="cpu", log_every=2, **changes)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log without timings."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in read]


def tiny(name: str, seed: int) -> ltnode.Model:
    if name == "noisy":  # draws noise from the global generator, so it is affected when other runs draw from it
        return TwoPhaseModel()
    return ltnode.build(name, DATA, seed=seed, width=6)


@pytest.mark.parametrize("name", ["noisy", "lt-node", "mc-dropout"])
def test_every_run_is_the_one_it_would_have_been_alone(name: str, tmp_path: Path) -> None:
    """Weights and logs equal those of `ltnode.fit`, and the random state of the caller is unchanged."""
    models = {seed: tiny(name, seed) for seed in SEEDS}
    before = torch.get_rng_state()
    runs = fit_seeds(models.__getitem__, DATA, config(), SEEDS, tmp_path / "together")
    assert torch.equal(torch.get_rng_state(), before)
    assert [run.config.seed for run in runs] == list(SEEDS)
    for seed, run in zip(SEEDS, runs, strict=True):
        alone = ltnode.fit(tiny(name, seed), DATA, config(seed=seed), tmp_path / f"alone{seed}")
        assert run.path == tmp_path / f"together-seed{seed}"
        assert (run.path / "model.safetensors").read_bytes() == (alone.path / "model.safetensors").read_bytes()  # type: ignore[operator]
        assert lines(run.path) == lines(alone.path)  # type: ignore[arg-type]
        assert json.loads((run.path / "config.json").read_text())["train"] == alone.config.to_json()
        assert (run.results["concurrent_runs"], alone.results["concurrent_runs"]) == (3, 1)


def test_interrupted_runs_continue_together_or_alone(tmp_path: Path) -> None:
    """After SIGTERM every run has a checkpoint; resumed together or alone, all end like uninterrupted runs."""
    whole = fit_seeds(lambda seed: TwoPhaseModel(), DATA, config(), SEEDS, tmp_path / "whole")
    caught: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:

        def interrupting(seed: int) -> ltnode.Model:
            model = TwoPhaseModel()
            if seed == 0:
                after = model.after_step
                calls = iter(range(1, 1000))

                def stop() -> None:
                    after()
                    if next(calls) == 5:
                        signal.raise_signal(signal.SIGTERM)

                model.after_step = stop  # type: ignore[method-assign]
            return model

        runs = fit_seeds(interrupting, DATA, config(), SEEDS, tmp_path / "cut")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert caught == [signal.SIGTERM]
    assert all(run.status is RunStatus.INTERRUPTED for run in runs)
    ltnode.fit(TwoPhaseModel(), DATA, config(seed=4), tmp_path / "cut-seed4", resume=True)
    resumed = fit_seeds(lambda seed: TwoPhaseModel(), DATA, config(), SEEDS, tmp_path / "cut", resume=True)
    for a, b in zip(whole, resumed, strict=True):
        assert b.status is RunStatus.COMPLETE
        assert (a.path / "model.safetensors").read_bytes() == (b.path / "model.safetensors").read_bytes()  # type: ignore[operator]


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    """The error names the run whose loss becomes NaN; the files of the other runs are complete."""

    def build(seed: int) -> ltnode.Model:
        model = TwoPhaseModel()
        if seed == 0:
            with torch.no_grad():
                model.linear.weight.fill_(torch.nan)
        return model

    with pytest.raises(TrainingError, match="x-seed0: .*nan.*What to do: lower lr") as caught:
        fit_seeds(build, DATA, config(), SEEDS, tmp_path / "x")
    assert str(caught.value).count("What to do") == 1
    status = {seed: json.loads((tmp_path / f"x-seed{seed}" / "results.json").read_text())["status"] for seed in SEEDS}
    assert status == {3: "complete", 0: "non_finite", 4: "complete"}


def test_different_models_and_data_train_concurrently(tmp_path: Path) -> None:
    """A regression and a classification with different configurations end like each of them alone."""
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    spec = ltnode.InputSpec((2,), "classification", 3)

    def jobs(folder: str) -> list[Job]:
        return [
            Job(TwoPhaseModel(), DATA, config(seed=1), tmp_path / folder / "a"),
            Job(ltnode.build("uni-node", spec, seed=0, width=4), (x, y), config(lr=0.02), tmp_path / folder / "b"),
        ]

    together = fit_together(jobs("together"))
    for job, run in zip(jobs("alone"), together, strict=True):
        ltnode.fit(job.model, job.data, job.config, job.out)
        alone = Path(str(job.out))
        assert (run.path / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()  # type: ignore[operator]
        assert lines(run.path) == lines(alone)  # type: ignore[arg-type]


def test_a_queue_of_runs_ends_like_each_alone(tmp_path: Path) -> None:
    """Of three runs of different length, two at a time, the third starts when the first ends; all end like each alone."""

    def jobs(folder: str) -> list[Job]:
        return [Job(TwoPhaseModel(), DATA, config(seed=n).replace(epochs=n), tmp_path / folder / str(n)) for n in (1, 2, 3)]

    queued = fit_together(jobs("queued"), at_once=2)
    for job, run in zip(jobs("alone"), queued, strict=True):
        ltnode.fit(job.model, job.data, job.config, job.out)
        assert (run.path / "model.safetensors").read_bytes() == (Path(str(job.out)) / "model.safetensors").read_bytes()  # type: ignore[operator]
        assert run.results["concurrent_runs"] == 2


def test_concurrent_runs_share_device_and_precision() -> None:
    with pytest.raises(ConfigError, match="the same device and precision, not cpu bf16, cpu fp32"):
        fit_together([Job(TwoPhaseModel(), DATA, config(precision=name)) for name in ("fp32", "bf16")])


@pytest.mark.parametrize(("chosen", "used"), [(None, "32"), ("1", "1")])
def test_cuda_gets_more_queues_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch, chosen: str | None, used: str) -> None:
    """With CUDA's default of 8 queues, runs wait for each other; a number that the user has set is kept."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.setenv(name, "")  # so that monkeypatch restores the variable
    monkeypatch.delenv(name) if chosen is None else monkeypatch.setenv(name, chosen)
    with pytest.raises(ConfigError):
        fit_together([])
    assert os.environ[name] == used


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_must_differ(seeds: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="different integers"):
        fit_seeds(lambda seed: TwoPhaseModel(), DATA, config(), seeds)


def test_the_command_trains_several_seeds(tmp_path: Path) -> None:
    """``--seeds 0-1``: two run folders that load; together with --seed it is refused."""
    words = [
        "train",
        "--model",
        "node",
        "--data",
        "synthetic",
        "--set",
        "epochs=2",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "r"),
    ]
    result = CliRunner().invoke(APP, [*words, "--seeds", "0-1"])
    assert result.exit_code == 0, result.output
    for seed in (0, 1):
        assert isinstance(ltnode.load(tmp_path / f"r-seed{seed}"), ltnode.LatentTimeODE)
    assert CliRunner().invoke(APP, [*words, "--seeds", "0-1", "--seed", "1"]).exit_code != 0
