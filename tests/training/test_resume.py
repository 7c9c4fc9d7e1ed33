"""Interrupted and resumed equals uninterrupted, bit for bit, however the run was interrupted."""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path

import pytest

import ltnode
from ltnode.errors import CheckpointError, ConfigError
from ltnode.training import RunStatus
from ltnode.training.checkpoint import model_tensors
from training.child import start
from training.tiny import Stop, TwoPhaseModel, assert_same_run, read_lines, stop_at, tiny_config, tiny_data, tiny_model


def finish(make, folder: Path, config, stops: list[int]) -> ltnode.Run:
    """Train with a crash at the first log line at or after each of these steps, and then to the end."""
    for step in stops:
        with pytest.raises(Stop):
            ltnode.fit(make(), tiny_data(), config, out=folder, resume=True, on_log=stop_at(step))
    return ltnode.fit(make(), tiny_data(), config, out=folder, resume=True)


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(TwoPhaseModel, "sgd"), (TwoPhaseModel, "adam"), (tiny_model, "adam"), (lambda: tiny_model("alt-node"), "sgd")],
    ids=["two-phase-sgd", "two-phase-adam", "lt-adam", "alt-sgd"],
)
def test_a_crash_at_any_point_changes_nothing(tmp_path, make, optimizer: str):
    """Crashes before the first checkpoint, between checkpoints (whose positions differ from the log's), and at the end."""
    config = tiny_config(optimizer=optimizer)
    whole = ltnode.fit(make(), tiny_data(), config, out=tmp_path / "whole")
    parts = finish(make, tmp_path / "parts", config, stops=[1, 9, 24])
    assert parts.status is RunStatus.COMPLETE and len(parts.history) == len(whole.history)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_checkpoint_between_two_log_lines_keeps_the_sums(tmp_path):
    """Checkpoints at 3, 6, ... and lines at 4, 8, ...: the line at 8 covers steps on both sides of the crash."""
    config = tiny_config(log_every=8)
    ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=tmp_path / "whole")
    finish(TwoPhaseModel, tmp_path / "parts", config, stops=[8, 16])
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert [line["step"] for line in read_lines(tmp_path / "parts")] == [8, 16, 24]


def test_the_log_says_from_which_step_it_resumed(tmp_path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "ltnode"):
        finish(TwoPhaseModel, tmp_path / "run", tiny_config(), stops=[8])
    assert "resumed from step 6 (epoch 2, batch 0)" in caplog.text


def test_time_decides_checkpoints_too(tmp_path):
    """Every step is due when the interval is 6 microseconds; only the last two are kept."""
    config = tiny_config(checkpoint_epochs=None, checkpoint_minutes=1e-7)
    ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step-0000000023", "step-0000000024"]


def test_a_complete_run_is_given_back_without_training(tmp_path):
    first = ltnode.fit(tiny_model(), tiny_data(), tiny_config(epochs=2), out=tmp_path / "run")
    model = tiny_model()
    again = ltnode.fit(model, tiny_data(), tiny_config(epochs=2), out=tmp_path / "run", resume=True, on_log=stop_at(0))
    assert again.status is RunStatus.COMPLETE and again.history == first.history and again.results == first.results
    tensors = [model_tensors(one) for one in (first.model, model)]
    assert all(a.equal(b) for a, b in zip(*(one.values() for one in tensors), strict=True))


def test_a_complete_run_with_a_damaged_model_is_finished_again(tmp_path):
    config = tiny_config(epochs=2)
    ltnode.fit(tiny_model(), tiny_data(), config, out=tmp_path / "run")
    path = tmp_path / "run/model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match="damaged"):
        ltnode.load(tmp_path / "run")
    ltnode.fit(tiny_model(), tiny_data(), config, out=tmp_path / "run", resume=True)
    assert path.read_bytes() == whole


def test_resuming_with_another_configuration_names_what_differs(tmp_path):
    finish(TwoPhaseModel, tmp_path / "run", tiny_config(), stops=[8])
    with pytest.raises(ConfigError, match=r"lr: 0.005 -> 0.5; milestones: \[4\] -> \[5\]"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(lr=0.5, milestones=(5,)), out=tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match=r"data\.n_train: 48 -> 50"):
        ltnode.fit(TwoPhaseModel(), tiny_data(50), tiny_config(), out=tmp_path / "run", resume=True)


def test_resuming_with_another_model_is_refused(tmp_path):
    with pytest.raises(Stop):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(4))
    with pytest.raises(ConfigError, match="model:"):
        ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(3), tiny_data(), tiny_config(), out=tmp_path / "own", on_log=stop_at(4))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        ltnode.fit(TwoPhaseModel(5), tiny_data(), tiny_config(), out=tmp_path / "own", resume=True)


def test_what_does_not_decide_the_result_may_change_on_resume(tmp_path):
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "parts", on_log=stop_at(8))
    changed = tiny_config(checkpoint_epochs=5, keep_checkpoints=1)
    ltnode.fit(TwoPhaseModel(), tiny_data(), changed, out=tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


LONGER = {"epochs": 20, "milestones": (10,)}


def kill_and_resume(folder: Path, kills: int, rng: random.Random) -> None:
    """Train in processes that get SIGKILL at random moments, then once to the end."""
    done = 0
    while done < kills:
        began = folder.with_name("began")
        began.unlink(missing_ok=True)
        process = start(folder, changes=LONGER)
        while not began.exists() and process.is_alive():
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.5))
        process.kill()
        process.join()
        assert process.exitcode in (-9, 0), "the training itself failed"
        if process.exitcode == 0:
            # The training ended before the kill: start again, so that every kill hits a running training.
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            continue
        done += 1
    process = start(folder, changes=LONGER)
    process.join()
    assert process.exitcode == 0


@pytest.mark.posix
def test_kill_9_at_random_moments_loses_nothing(tmp_path):
    """After three kills, the final weights and the log are those of an uninterrupted run."""
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(**LONGER), out=tmp_path / "whole")
    kill_and_resume(tmp_path / "killed", 3, random.Random(0))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_9_at_ten_random_moments_loses_nothing(tmp_path, seed: int):
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(**LONGER), out=tmp_path / "whole")
    kill_and_resume(tmp_path / "killed", 10, random.Random(seed))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_lost_log_does_not_stop_a_resume(tmp_path, caplog: pytest.LogCaptureFixture):
    """The weights are those of the uninterrupted run; the lines before the checkpoint are lost, and a warning says so."""
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(12))
    (tmp_path / "run/metrics.jsonl").unlink()
    run = ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)
    assert "lines of the log are lost" in caplog.text
    assert [line["step"] for line in run.history] == [12, 16, 20, 24]
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
