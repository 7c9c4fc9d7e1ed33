"""Records of a run that someone has changed: a log, results and an evaluation are checked before anything is made of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import ltnode
from ltnode.errors import CheckpointError
from ltnode.report.runs import read_runs
from ltnode.training import RunStatus
from ltnode.training.run import RunFolder, read_log
from training.tiny import TwoPhaseModel, assert_same_run, tiny_config, tiny_data

RESULTS = {"status": "complete", "message": None, "steps": 6, "total_steps": 6, "provenance": {"wall_time_s": 1.0}}
ROW = {"model": "lt-node", "data": "x", "preset": None, "seed": 0, "protocol": "clean", "metric": "error", "value": 0.1, "n": 9}


@pytest.mark.parametrize(
    "change", [{"steps": []}, {"provenance": {}}, {"provenance": {"wall_time_s": "x"}}, {"message": 7}, {"total_steps": None}]
)
def test_a_run_with_strange_results_is_finished_again_from_its_last_checkpoint(tmp_path: Path, change: dict[str, Any]) -> None:
    """They would end the commands that show them; the status counts as that of a killed run, and the bits stay the same."""
    for name in ("whole", "changed"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / name)
    (tmp_path / "changed" / "results.json").write_text(json.dumps({**RESULTS, **change}))
    assert RunFolder(tmp_path / "changed").status() is RunStatus.RUNNING
    again = ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "changed", resume=True)
    assert again.status is RunStatus.COMPLETE and again.results["steps"] > 0
    assert_same_run(tmp_path / "whole", tmp_path / "changed")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b"[1]",
        b"7",
        b'{"loss": "x"}',
        b'{"step": null}',
        b'{"validation": {"rmse": "x"}}',
        b'{"lr": [1]}',
        b"\xff",
    ],
)
def test_a_log_that_holds_anything_but_numbers_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"loss": 0.5, "step": 1}\n' + line + b"\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_log(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluation.json"])
def test_a_report_reads_regular_files_only(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe would wait for a writer, and /dev/zero has no end."""
    content = {"format": 1, "kind": "evaluation", "made_with": {}, "protocols": {"clean": {"provenance": {}, "rows": [ROW]}}}
    (tmp_path / "evaluation.json").write_text(json.dumps(content))
    assert len(read_runs([tmp_path])) == 1
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="regular file"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    "change",
    [
        {"protocols": {"clean": 3}},
        {"protocols": {"clean": {"provenance": {}}}},
        {"protocols": {"clean": {"provenance": {"wall_time_s": "x"}, "rows": [ROW]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "model": 3}]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "seed": "0"}]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "setting": {"ood": []}}]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "value": [0.1], "extra": {}}]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "extra": {"variant": 3}}]}}},
        {"protocols": {"clean": {"provenance": {}, "rows": [{**ROW, "cost": {"evaluations": 1, "seconds_per_1000": "x"}}]}}},
        {"made_with": {"options": []}},
    ],
)
def test_results_of_an_evaluation_that_cannot_be_shown_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    content = {"format": 1, "kind": "evaluation", "made_with": {}, "protocols": {"clean": {"provenance": {}, "rows": [ROW]}}}
    (tmp_path / "evaluation.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(CheckpointError):
        read_runs([tmp_path])
