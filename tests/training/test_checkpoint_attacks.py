"""Checkpoints under attack: strays, swaps, forgeries and write faults never cost the last good state, and never pass for it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ltnode
from ltnode.errors import CheckpointError
from ltnode.training import RunStatus, checkpoint, loop
from training.child import start
from training.faults import KINDS, Faults
from training.tiny import Stop, TwoPhaseModel, assert_same_run, stop_at, tiny_config, tiny_data, tiny_model


def small(step: int, run: str | None = "this") -> checkpoint.Checkpoint:
    return checkpoint.Checkpoint(step, {"w": torch.arange(3.0) + step}, {"edges": [0.5]}, run)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("file", ["state.json", "tensors.safetensors"])
def test_a_damaged_newest_checkpoint_does_not_count_and_the_new_one_stays(tmp_path: Path, file: str):
    """Keep 1: steps 1 and 5 exist, 5 is damaged; writing step 3 keeps it, and leaves the damaged folder alone."""
    for step in (1, 5):
        checkpoint.write(tmp_path, small(step), keep=2)
    damaged = tmp_path / "step-0000000005" / file
    damaged.write_bytes(damaged.read_bytes()[:-3])
    checkpoint.write(tmp_path, small(3), keep=1)
    found = checkpoint.latest(tmp_path)
    assert found is not None and found.step == 3
    assert names(tmp_path) == ["step-0000000003", "step-0000000005"]


def test_stray_folders_and_other_runs_neither_count_nor_are_removed(tmp_path: Path):
    """Keep 2: two stray folders with higher numbers, and a checkpoint of another run, leave the last two of this run."""
    (tmp_path / "step-9999999998").mkdir()
    (tmp_path / "step-9999999999").mkdir()
    (tmp_path / "step-backup").mkdir()
    checkpoint.write(tmp_path, small(2, run="other"), keep=2)
    for step in (1, 3, 4, 5):
        checkpoint.write(tmp_path, small(step), keep=2)
    kept = ["step-0000000002", "step-0000000004", "step-0000000005", "step-9999999998", "step-9999999999", "step-backup"]
    assert names(tmp_path) == kept


def test_a_damaged_older_checkpoint_does_not_replace_a_good_one(tmp_path: Path):
    """Keep 2: of steps 1, 2, 3 the second is damaged, so that 1 stays as the second good one."""
    for step in (1, 2):
        checkpoint.write(tmp_path, small(step), keep=2)
    (tmp_path / "step-0000000002" / "tensors.safetensors").write_bytes(b"")
    checkpoint.write(tmp_path, small(3), keep=2)
    assert names(tmp_path) == ["step-0000000001", "step-0000000002", "step-0000000003"]


def test_checkpoints_of_another_seed_are_refused(tmp_path: Path):
    for seed in (3, 4):
        with pytest.raises(Stop):
            ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(seed=seed), out=tmp_path / str(seed), on_log=stop_at(8))
    shutil.rmtree(tmp_path / "3/checkpoints")
    shutil.copytree(tmp_path / "4/checkpoints", tmp_path / "3/checkpoints")
    with pytest.raises(CheckpointError, match="belong to another run"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(seed=3), out=tmp_path / "3", resume=True)


def test_checkpoints_of_other_initial_weights_are_refused(tmp_path: Path):
    """Equal configurations, other initial weights: the identity of a run includes where it started."""
    models = {"a": tiny_model(), "b": ltnode.build("lt-node", "synthetic", seed=1, width=8)}
    for name, model in models.items():
        with pytest.raises(Stop):
            ltnode.fit(model, tiny_data(), tiny_config(), out=tmp_path / name, on_log=stop_at(8))
    shutil.rmtree(tmp_path / "a/checkpoints")
    shutil.copytree(tmp_path / "b/checkpoints", tmp_path / "a/checkpoints")
    with pytest.raises(CheckpointError, match="belong to another run"):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "a", resume=True)


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the newest checkpoint as someone would who recomputes the checksum."""
    path = max((folder / "checkpoints").iterdir())
    envelope = json.loads((path / "state.json").read_text())
    change(envelope["payload"])
    envelope["sha256"] = checkpoint._checksum(envelope["payload"])
    (path / "state.json").write_text(json.dumps(envelope))
    step = envelope["payload"]["step"]
    if isinstance(step, int) and step >= 0:
        path.rename(path.with_name(f"step-{step:010d}"))


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload.update(step=-5),
        lambda payload: payload.update(step=10**9),
        lambda payload: payload.update(step=payload["step"] + 1),
        lambda payload: payload.update(step="6"),
        lambda payload: payload["state"].pop("solver"),
        lambda payload: payload["state"].update(metrics_bytes=-1),
        lambda payload: payload["state"].update(seconds="long"),
        lambda payload: payload["state"].update(log=[]),
        lambda payload: payload.update(state=[]),
    ],
)
def test_a_forged_checkpoint_is_passed_over_for_the_previous_one(tmp_path: Path, change: Callable[[dict[str, Any]], None]):
    """The run continues from the checkpoint before, and ends with the same bits as an undisturbed one."""
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(8))
    forge(tmp_path / "run", change)
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_deeply_nested_state_does_not_block_older_checkpoints(tmp_path: Path):
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(8))
    newest = max((tmp_path / "run/checkpoints").iterdir()) / "state.json"
    newest.write_text("[" * 100_000)
    assert ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True).status is RunStatus.COMPLETE


@pytest.mark.parametrize("edges", [[1.0, 0.5], [0.0, float("nan")], [0.0] * 3, [0.0], "no", list(range(200_000))])
def test_a_training_grid_that_cannot_be_solved_on_is_refused(tmp_path: Path, edges: Any):
    with pytest.raises(Stop):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(8))
    forge(tmp_path / "run", lambda payload: payload["state"]["solver"].update(edges=edges))
    with pytest.raises(CheckpointError, match="cannot be restored"):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)


def test_a_log_that_is_a_folder_is_an_error_of_one_line(tmp_path: Path):
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(8))
    (tmp_path / "run/metrics.jsonl").unlink()
    (tmp_path / "run/metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match="regular file"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)


def test_checkpoints_come_every_25_seconds_where_they_are_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the default of 5 minutes, a step of 26 s is followed by a checkpoint; where one takes 1 s, every fourth is."""
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    written: list[int] = []
    costs = {"seconds": 0.0}

    def write(folder: Path, reached: checkpoint.Checkpoint, keep: int) -> None:
        now[0] += costs["seconds"]
        written.append(reached.step)

    monkeypatch.setattr(loop.checkpoint, "write", write)

    def later(line: Any) -> None:
        now[0] += 26.0

    config = tiny_config(epochs=3, log_every=1, checkpoint_epochs=None, checkpoint_minutes=5.0)
    ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=tmp_path / "cheap", on_log=later)
    assert written == list(range(1, 10))
    written.clear()
    costs["seconds"] = 1.0
    ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=tmp_path / "dear", on_log=later)
    assert written == [1, 5, 9]


@pytest.mark.posix
def test_a_closed_terminal_stops_a_training_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SIGHUP is like SIGTERM, unless it was ignored at the start, as under nohup."""
    ended: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: ended.append(number))

    def hang_up(line: Any) -> None:
        if line["step"] == 8:
            signal.raise_signal(signal.SIGHUP)

    try:
        run = ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "stopped", on_log=hang_up)
        assert run.status is RunStatus.INTERRUPTED and ended == [signal.SIGHUP]
        found = checkpoint.latest(tmp_path / "stopped/checkpoints")
        assert found is not None and found.step == 8
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        run = ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "ignored", on_log=hang_up)
        assert run.status is RunStatus.COMPLETE
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_write_of_a_run_folder_loses_nothing(tmp_path: Path, kind: str):
    """At every position in turn: the run ends or stops with a clear error, and then resumes to the same bits."""
    config = tiny_config(epochs=3, log_every=4, keep_checkpoints=1)
    ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=tmp_path / "whole")
    position, failed = 0, 0
    while True:
        folder = tmp_path / str(position)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, kind, position)
            try:
                ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=folder)
            except CheckpointError as error:
                failed += 1
                assert "could not write" in str(error)
        ltnode.fit(TwoPhaseModel(), tiny_data(), config, out=folder, resume=True)
        assert_same_run(tmp_path / "whole", folder)
        if not faults.happened:
            break
        position += 1
    harmless = kind in ("short write", "interrupted")  # they are repeated by the operating system's rules
    assert harmless or (position >= 3 and failed >= 3), "no fault has happened"


def test_a_kill_while_another_process_reads_the_folder_is_harmless(tmp_path: Path):
    """A reader that opens checkpoints all the time sees only whole ones while the training writes and prunes them."""
    process = start(tmp_path / "run", changes={"epochs": 20, "milestones": (10,)})
    problems: list[str] = []
    seen = 0
    while process.is_alive():
        for path in checkpoint._paths(tmp_path / "run/checkpoints"):
            try:
                checkpoint.read(path)
                seen += 1
            except CheckpointError as error:
                if path.exists() and "missing" not in str(error):
                    problems.append(str(error))
    process.join()
    assert process.exitcode == 0 and not problems and seen
