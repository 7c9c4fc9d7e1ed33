"""``ltnode bench``: every implementation is timed and its work is counted, and the record says where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ltnode.cli.app import make_app


def bench(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(make_app(), ["bench", "--device", "cpu", "--repeats", "2", *words], prog_name="ltnode")
    return result.exit_code, result.output


@pytest.mark.parametrize("model", ["lt-node", "alt-node", "node", "sde-net"])
def test_every_way_has_a_time_and_its_evaluations(model: str, tmp_path: Path):
    """The training grid needs fewer evaluations than search and replay, and the printed times are the recorded ones."""
    code, output = bench("--model", model, "--data", "synthetic", "--batch", "20", "--json", str(tmp_path / "speed.json"))
    assert code == 0, output
    found = json.loads((tmp_path / "speed.json").read_text())
    timings = {(t["work"], t["way"]): t for t in found["timings"]}
    assert all(t["milliseconds"] > 0 and t["evaluations"] > 0 for t in timings.values())
    assert found["torch"] and found["device"].startswith("cpu") and "git_commit" in found
    if model != "sde-net":
        reference = timings["training step", "reference: grid search, then replay"]
        kept = timings["training step", "training grid, eager"]
        assert kept["evaluations"] < reference["evaluations"]
    for t in timings.values():
        assert f"{t['milliseconds']:.2f}" in output


def test_a_wrong_name_is_reported_in_one_line():
    code, output = bench("--model", "lt-nod")
    assert code == 2 and "unknown model" in output
    assert "Traceback" not in output


def test_a_file_that_cannot_be_written_is_reported_before_measuring(tmp_path: Path):
    code, output = bench("--data", "synthetic", "--json", str(tmp_path / "missing" / "speed.json"))
    assert code == 2 and "there is no folder" in output and " ms" not in output
