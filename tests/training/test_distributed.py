"""Several processes (gloo on the CPU) compute the same as one, and the run survives the loss of a process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ltnode
from ltnode.training import checkpoint, tensor_file
from training.child import start, start_workers
from training.tiny import read_lines, tiny_config, tiny_data, tiny_model

pytestmark = pytest.mark.posix  # processes that are ended by signals

FIXED = {"solver": {"training": "fixed", "fixed_steps": 3}}
"""Solver steps that do not depend on the examples of a process."""


def wait(processes: list) -> None:
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return tensor_file.read(folder / "model.safetensors")


def assert_close_runs(one: Path, other: Path, atol: float) -> None:
    for name, value in weights(one).items():
        # What is fitted after training amplifies rounding, and the number of steps of the prediction grid may differ.
        if name.partition(".")[0] not in ("grid", "familiarity", "ranks", "widening"):
            torch.testing.assert_close(weights(other)[name], value, rtol=0, atol=atol)
    lines = [[(line["step"], line["epoch"]) for line in read_lines(folder)] for folder in (one, other)]
    assert lines[0] == lines[1]
    losses = [torch.tensor([line["loss"] for line in read_lines(folder)]) for folder in (one, other)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
def test_two_processes_equal_one_on_a_fixed_grid(tmp_path, name: str):
    """Order and end-times are the same and gradients are weighted by shares, so only rounding differs (1e-6).

    Batches of 11 of 48 examples are divided unevenly, and the last one has 4.
    """
    changes = {"batch_size": 11, "epochs": 4, "log_every": 3, "weight_decay": 1e-3}
    ltnode.fit(tiny_model(name, **FIXED), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    wait(start_workers(tmp_path / "two", 2, name=name, changes=changes, options=FIXED))
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-6)


def test_two_processes_agree_with_one_within_the_tolerance_on_the_kept_grid(tmp_path):
    """Every process has the training grid of its examples, so the solves agree to the tolerance 1e-2, and so do the weights."""
    changes = {"epochs": 4}
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    wait(start_workers(tmp_path / "two", 2, changes=changes))
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-2)


def test_more_processes_than_examples_in_the_last_batch(tmp_path):
    """48 = 47 + 1: the second process has no examples in the last batch of an epoch, and the sum is still correct."""
    changes = {"batch_size": 47, "epochs": 3, "log_every": 1}
    ltnode.fit(tiny_model("node", **FIXED), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    wait(start_workers(tmp_path / "two", 2, name="node", changes=changes, options=FIXED))
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-6)


def test_a_killed_process_ends_the_others_clearly_and_the_run_resumes_with_another_number(tmp_path):
    """After SIGKILL for the second of two processes the first stops with the remedy; one process continues the run."""
    changes = {"epochs": 24, "milestones": (12,)}
    ltnode.fit(tiny_model(**FIXED), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    folder = tmp_path / "two"
    first, second = start_workers(folder, 2, changes=changes, options=FIXED)
    while checkpoint.latest(folder / "checkpoints") is None and first.is_alive():
        time.sleep(0.01)
    second.kill()
    first.join(60)
    assert first.exitcode == 3, "the survivor must end by itself, with an error of ltnode"
    message = (tmp_path / "two-0.log").read_text()
    assert message.startswith("TrainingError") and "could not reach the others" in message and "resume" in message
    assert json.loads((folder / "results.json").read_text())["status"] == "peer_lost"
    last = start(folder, changes=changes, options=FIXED)
    wait([last])
    assert_close_runs(tmp_path / "one", folder, 1e-6)


def test_when_the_writer_is_killed_all_others_end_with_a_message_and_two_continue_the_run(tmp_path):
    """Of three processes the one that writes is killed: both others stop with the remedy, and two processes continue."""
    changes = {"epochs": 16, "milestones": (8,)}
    ltnode.fit(tiny_model(**FIXED), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    folder = tmp_path / "three"
    writer, *others = start_workers(folder, 3, changes=changes, options=FIXED)
    while checkpoint.latest(folder / "checkpoints") is None and writer.is_alive():
        time.sleep(0.01)
    writer.kill()
    for rank, process in enumerate(others, 1):
        process.join(60)
        assert process.exitcode == 3, f"process {rank} must end by itself"
        message = (tmp_path / f"three-{rank}.log").read_text()
        assert "could not reach the others" in message and "resume" in message
    wait(start_workers(folder, 2, changes=changes, options=FIXED))
    assert_close_runs(tmp_path / "one", folder, 1e-6)


def test_a_failed_solve_in_one_process_ends_all_of_them(tmp_path):
    """Both processes report a failed solve, and none waits forever for the gradient of the other."""
    options = {"solver": {"training": "adaptive", "max_steps": 1, "rtol": 1e-12, "atol": 1e-12}}
    processes = start_workers(tmp_path / "run", 2, options=options)
    for rank, process in enumerate(processes):
        process.join(60)
        assert process.exitcode == 3
        assert "solver_failed" in (tmp_path / f"run-{rank}.log").read_text()


def test_an_error_of_the_writer_reaches_all(tmp_path):
    """Only the first process opens the folder, which is not a run, and all processes report it."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for rank, process in enumerate(start_workers(folder, 2)):
        process.join(60)
        assert process.exitcode == 3
        assert "not a run folder" in (tmp_path / f"run-{rank}.log").read_text()


@pytest.mark.slow
def test_torchrun_starts_a_run(tmp_path):
    """Start a run with torchrun as the documentation shows."""
    script = tmp_path / "train.py"
    script.write_text(
        f"from training.tiny import *\nimport ltnode\n"
        f"ltnode.fit(tiny_model(solver={FIXED['solver']}), tiny_data(), tiny_config(), out={str(tmp_path / 'two')!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(command, check=True, env=environment, timeout=200, capture_output=True)
    ltnode.fit(tiny_model(**FIXED), tiny_data(), tiny_config(), out=tmp_path / "one")
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-6)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
