"""The parts of `benchmarks/training.py` that need no GPU: claims about the rows, and peers in separate processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from repository import load_script, repository_file


@pytest.fixture
def record() -> dict[str, Any]:
    return json.loads(repository_file("benchmarks/results/training.json").read_text())


def test_the_recorded_claims_follow_from_the_recorded_rows(record: dict[str, Any]):
    """Recomputing the claims about times, ratios, memory, start-up and seeds gives the recorded floats."""
    assert load_script("benchmarks/training_claims.py").claims(record["rows"]) == record["claims"]


def test_the_fastest_adjoint_of_diffrax_is_compared_beside_torchdiffeq(record: dict[str, Any]):
    """Every ratio to torchdiffeq has a counterpart for diffrax; a peer of 4 ms is twice as slow as a variant of 2 ms."""
    rows = [row for row in record["rows"] if not row["way"].startswith("diffrax")]
    ours = [row for row in rows if row["way"] == "lt-node fused bf16, cifar10, 5 steps"]
    ours[0]["device_ms"] = 2.0
    peers = [
        {"way": f"diffrax {name}", "device_ms": ms, "shapes": "cifar10"} for name, ms in (("a", 9.0), ("b", 4.0), ("c", 5.0))
    ]
    found = {claim["claim"]: claim for claim in load_script("benchmarks/training_claims.py").claims(rows + peers)}
    assert found[f"{ours[0]['way']}: times faster than diffrax b"] == {
        "claim": f"{ours[0]['way']}: times faster than diffrax b",
        "value": 2.0,
    }
    ratios = [claim.split(": times faster than ") for claim in found if "times faster" in claim]
    ways = {peer: [way for way, other in ratios if other == peer] for peer in ("torchdiffeq direct", "diffrax b")}
    assert ways["torchdiffeq direct"] == ways["diffrax b"] and len(ratios) == 2 * len(ways["diffrax b"])


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("pass", ""),
        ("raise SystemExit('peer: jax sees no GPU, not measured')", "peer: jax sees no GPU, not measured\n"),
        ("raise ValueError('first\\nlast')", "last\n"),
        ("os.kill(os.getpid(), 9)", "script.py: ended with status -9\n"),
        ("time.sleep(60)", "script.py: ended after 5 s\n"),
    ],
)
def test_a_peer_that_fails_costs_its_rows_only(
    ending: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Rows that were written before the end are kept, and one line says how the script ended."""
    own_process = load_script("benchmarks/own_process.py")
    monkeypatch.setattr(own_process, "__file__", str(tmp_path / "own_process.py"))
    writing = "assert sys.argv[1:4] == ['--data', 'mnist', '--json']\nopen(sys.argv[4], 'w').write('[{\"a\": 1}]')"
    (tmp_path / "script.py").write_text(f"import os, sys, time\n{writing}\n{ending}\n")
    seconds = 5 if "sleep" in ending else 60
    assert own_process.rows_of_script("script.py", "--data", "mnist", seconds=seconds) == [{"a": 1}]
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("text", ["", "[{"])
def test_a_record_that_is_missing_or_cut_off_has_no_rows(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A script may be stopped before or while it writes."""
    own_process = load_script("benchmarks/own_process.py")
    monkeypatch.setattr(own_process, "__file__", str(tmp_path / "own_process.py"))
    (tmp_path / "script.py").write_text(f"import sys\nif {text!r}: open(sys.argv[-1], 'w').write({text!r})\n")
    assert own_process.rows_of_script("script.py", seconds=60) == []


def test_the_time_of_a_step_leaves_out_what_happens_once(monkeypatch: pytest.MonkeyPatch):
    """With a simulated clock, a start of 7 s cancels and 20 ms per step remain."""
    seeds, now = load_script("benchmarks/seeds.py"), [0.0]

    def run(epochs: int) -> None:
        now[0] += 7.0 + epochs * 50 * 0.02

    monkeypatch.setattr(seeds.time, "perf_counter", lambda: now[0])
    assert seeds.step_milliseconds(run, 8, 28, 50) == pytest.approx(20.0)


def test_the_trainings_that_are_timed_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch):
    """Two seeds for one epoch of one batch on a CPU: the images have CIFAR10's shape, normalisation and augmentation."""
    seeds = load_script("benchmarks/seeds.py")
    monkeypatch.setattr(seeds, "BATCHES", 1)
    monkeypatch.setattr(seeds, "BATCH", 4)
    monkeypatch.setattr(seeds.torch.cuda, "synchronize", lambda: None)
    kept, trained = seeds.replace, []
    monkeypatch.setattr(seeds, "replace", lambda config, **changes: kept(config, **{**changes, "device": "cpu"}))
    together = seeds.fit_seeds
    monkeypatch.setattr(seeds, "fit_seeds", lambda *words: trained.extend(together(*words)))
    data = seeds.random_images()
    seeds.train(data, 2, 1)
    assert len(trained) == 2 and data.train.x.shape == (4, 3, 32, 32)
    assert data.augment is not None and data.normalise is not None
