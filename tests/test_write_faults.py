"""A fault at any write of what is not a checkpoint: saved models and estimators, calibrations, ensembles, predictions, sweeps.

Checkpoints and the other files of a training are in tests/training/test_checkpoint_attacks.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.faults import KINDS, Faults
from training.tiny import tiny_config, tiny_data, tiny_model

import ltnode
from ltnode import files
from ltnode.errors import CheckpointError
from ltnode.trained import TrainedModel
from ltnode.trained.renewal import renew_calibration


def at_every_position(kind: str, attempt: Callable[[], object], check: Callable[[bool], None]) -> int:
    """Let the n-th operation fail, for every n in turn; ``check`` is told whether the attempt failed. Returns how many did."""
    position, failed = 0, 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, kind, position)
            error: CheckpointError | None = None
            try:
                attempt()
            except CheckpointError as caught:
                error = caught
        failed += error is not None
        check(error is not None)
        if not faults.happened:
            return failed
        position += 1


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_belong_together_are_all_new_or_all_old(tmp_path: Path, kind: str) -> None:
    """At every position in turn, and without leftovers; the same for a folder that is replaced as a whole."""
    old, new = {"a": b"old a", "b": b"old b"}, {"a": b"new a", "b": b"new b", "c": b"new c"}
    for write in (files.replace_files, files.write_folder):
        folder = tmp_path / write.__name__

        def fresh(folder: Path = folder) -> None:
            files.remove_folder(folder)
            files.write_folder(folder, old)

        def check(failed: bool, folder: Path = folder, fresh: Callable[[], None] = fresh) -> None:
            assert content(folder) == (old if failed else new)
            assert not list(tmp_path.glob(f"{files.TEMPORARY}*"))
            fresh()

        fresh()
        failed = at_every_position(kind, lambda write=write, folder=folder: write(folder, new), check)
        expected = kind in ("fsync", "full disk") or kind == ("replace" if write is files.replace_files else "rename")
        assert bool(failed) == expected


@pytest.mark.parametrize("kind", ["replace", "full disk"])
def test_a_saved_estimator_is_the_new_or_the_old_one(tmp_path: Path, kind: str) -> None:
    """The old weights with the scaling of the new estimator would predict something else without an error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    scales = (1.0, 50.0)
    fitted = [ltnode.LTNodeRegressor(max_epochs=1, width=4, random_state=0).fit(X * scale, scale * X[:, 0]) for scale in scales]
    answers = [estimator.predict(X[:3]) for estimator in fitted]
    ltnode.save(fitted[0], tmp_path / "saved")

    def check(failed: bool) -> None:
        np.testing.assert_array_equal(ltnode.load(tmp_path / "saved").predict(X[:3]), answers[0 if failed else 1])
        ltnode.save(fitted[0], tmp_path / "saved")

    assert at_every_position(kind, lambda: ltnode.save(fitted[1], tmp_path / "saved"), check) >= 3


@pytest.mark.parametrize("kind", ["fsync", "replace", "full disk"])
def test_a_calibration_and_its_record_are_renewed_together(tmp_path: Path, kind: str) -> None:
    run = ltnode.fit(tiny_model(), tiny_data(), tiny_config(epochs=2, calibration_fraction=0.4), out=tmp_path / "run")
    assert run.path is not None
    before = content(run.path)
    fresh = torch.linspace(-1, 1, 31)[:, None]

    def check(failed: bool) -> None:
        opened = TrainedModel.open(tmp_path / "run")
        assert opened.calibration is not None and opened.calibration.n == opened.n_calibration
        assert (opened.n_calibration == 31) != failed
        for name, old in before.items():
            (tmp_path / "run" / name).write_bytes(old)

    assert at_every_position(kind, lambda: renew_calibration(TrainedModel.open(tmp_path / "run"), fresh, "new"), check) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsync", "replace", "full disk"])
def test_an_ensemble_is_finished_after_a_fault_at_any_write(tmp_path: Path, kind: str) -> None:
    """Two members in one run folder, repeated with resume: the same weights as without a fault."""
    config = tiny_config(epochs=2, checkpoint_epochs=1)

    def network(seed: int) -> ltnode.Model:
        return ltnode.build("lt-node", tiny_data(), seed=seed, width=4)

    def train(folder: Path, resume: bool) -> Any:
        return ltnode.fit_members(network, tiny_data(), config, 2, folder, resume=resume)

    train(tmp_path / "whole", resume=False)
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    folders = (tmp_path / f"run{number}" for number in range(10_000))
    current: list[Path] = []

    def attempt() -> None:
        current.append(next(folders))
        train(current[-1], resume=False)

    def check(failed: bool) -> None:
        train(current[-1], resume=True)
        assert (current[-1] / "model.safetensors").read_bytes() == whole

    assert at_every_position(kind, attempt, check) >= 3


@pytest.mark.parametrize("kind", ["fsync", "replace", "full disk"])
def test_a_batch_prediction_is_finished_after_a_fault_at_any_write(tmp_path: Path, kind: str) -> None:
    """A block whose file could not be written is predicted again, and every row is there once."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from ltnode.cluster.blocks import find_blocks
    from ltnode.cluster.predict_block import predict_block

    run = ltnode.save(tiny_model(), tmp_path / "model")
    parquet.write_table(arrow.table({"x": np.linspace(-1, 1, 50)}), tmp_path / "rows.parquet")
    out = tmp_path / "out"
    out.mkdir()
    common = {"run": str(run), "output": str(out), "samples": 2, "device": "cpu", "threads": 1, "columns": []}
    work = [
        {**common, "call": "", "false_alarm_rate": None, "block": b.to_json()}
        for b in find_blocks([str(tmp_path / "rows.parquet")], 20)
    ]

    def predict() -> None:
        for block in work:
            predict_block(block)

    def check(failed: bool) -> None:
        predict()
        rows = arrow.concat_tables([parquet.read_table(file) for file in sorted(out.glob("part-*.parquet"))])
        assert rows.column("row").to_pylist() == list(range(50))
        assert not list(out.glob(f"{files.TEMPORARY}*"))
        for file in out.iterdir():
            file.unlink()

    assert at_every_position(kind, predict, check) >= 3


SPEC = {"model": "lt-node", "data": "synthetic", "seeds": [0, 1], "trials": 3, "strategy": "random"}
SEARCH = {"lr": {"low": 0.0001, "high": 0.3, "log": True}, "weight_decay": [0.0, 0.1]}


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Any]]:
    """Runs a sweep of stubs in this process, and returns its trials."""
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "cluster"))
    from in_this_process import InThisProcess

    from ltnode.cluster.spec import SweepSpec
    from ltnode.cluster.sweep import Sweep

    spec = SweepSpec.of({**SPEC, "search": SEARCH})
    return lambda out: Sweep(spec, out, InThisProcess(), function="stub_trial:stub").run().trials


def test_a_sweep_continues_after_a_full_disk_at_any_line_of_its_journal(tmp_path: Path, sweep: Any) -> None:
    """Half of the n-th line is written: the same command then trains the same points as an undisturbed sweep."""
    from optuna.storages.journal import JournalFileBackend

    original, whole = JournalFileBackend.append_logs, sweep(tmp_path / "whole")
    position = 0
    while True:
        left = [position]

        def append(backend: Any, logs: Any, left: list[int] = left) -> None:
            left[0] -= 1
            before = Path(backend._file_path).stat().st_size
            original(backend, logs)
            if left[0] == -1:
                after = Path(backend._file_path).stat().st_size
                os.truncate(backend._file_path, (before + after) // 2)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", append)
            try:
                sweep(tmp_path / str(position))
            except CheckpointError as error:
                assert "No space left" in str(error) and "continues the sweep" in str(error)
        assert sweep(tmp_path / str(position)) == whole
        if left[0] >= 0:
            break
        position += 1
    assert position > 10


def test_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path: Path, sweep: Any) -> None:
    sweep(tmp_path / "sweep")
    journal = tmp_path / "sweep" / "search.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"[" * 100_000 + b"\n", *lines[3:]]))
    with pytest.raises(CheckpointError, match=r"search\.journal is damaged at line 3"):
        sweep(tmp_path / "sweep")
