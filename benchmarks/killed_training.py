"""A training with the default command that is killed at random moments: lost work per kill, and whether the end is the same.

``LTNODE_DATA=DIR python benchmarks/killed_training.py [--kills 100] [--jobs 1] [--minutes 60] [--out FILE]``. One run trains
undisturbed; other runs of the same command get SIGKILL after a random time and are resumed until they are complete; then the next
starts. Lost work is the time since the last checkpoint, or since the process began to train (it locks the run folder then) if
that was later; nothing is lost before. Promised: at most 30 s each, and the same weights, bit for bit. Needs Linux, for
/proc/locks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ltnode.training.provenance import source_state  # noqa: E402

COMMAND = ("train", "--model", "lt-node", "--data", "mnist", "--limit", "2000", "--device", "cpu")
LIMIT_SECONDS = 30.0


def start(out: Path, epochs: int, resume: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    more = ["--set", f"epochs={epochs}", "--out", str(out), *(["--resume"] if resume else [])]
    command = [sys.executable, "-m", "ltnode.cli", *COMMAND, *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def holds_a_lock(pid: int) -> bool:
    return any(line.split()[4] == str(pid) for line in Path("/proc/locks").read_text().splitlines())


def wait_for(process: subprocess.Popen[bytes], seconds: float) -> float | None:
    """Wait for the end of a training, at most this long; when it began to train, or None if it did not."""
    until, began = time.time() + seconds, None
    while process.poll() is None and time.time() < until:
        if began is None and holds_a_lock(process.pid):
            began = time.time()
        time.sleep(0.05)
    return began


def lost_seconds(out: Path, began: float | None) -> float:
    """How much work is lost if the training is killed now."""
    if began is None:
        return 0.0
    written = [path.stat().st_mtime for path in (out / "checkpoints").glob("step-*")]
    return time.time() - max([began, *written])


def kill_until_complete(out: Path, epochs: int, rng: random.Random, kills: int, until: float) -> list[float]:
    """Resume and kill a run until it is complete; the seconds that each kill lost."""
    lost: list[float] = []
    while True:
        process = start(out, epochs, resume=True)
        if len(lost) < kills and time.monotonic() < until:
            began = wait_for(process, rng.uniform(2.0, 45.0))
            if process.poll() is None:
                process.kill()
                lost.append(lost_seconds(out, began))
        status = process.wait()
        if status == 0:
            return lost
        if status > 0:
            raise SystemExit(f"the training failed with status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0, help="no more kills after this time; the last run is completed")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="trainings that run, and are killed, at the same time")
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    until = time.monotonic() + 60 * chosen.minutes
    record: dict[str, Any] = {"command": " ".join(COMMAND), "epochs": chosen.epochs, "runs": 0, "identical": 0, "lost_s": []}
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        assert start(whole, chosen.epochs, resume=False).wait() == 0

        def job(number: int) -> None:
            """Kill one run after the other until this job's share of the kills is reached."""
            rng, left = random.Random(number), len(range(number, chosen.kills, chosen.jobs))
            while left > 0 and time.monotonic() < until:
                out = Path(tempfile.mkdtemp(dir=scratch)) / "run"
                lost = kill_until_complete(out, chosen.epochs, rng, left, until)
                left -= len(lost)
                same = (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
                record["runs"] += 1
                record["lost_s"] += [round(value, 1) for value in lost]
                record["identical"] += same
                most = max(record["lost_s"], default=0)
                print(f"run {record['runs']}: {len(record['lost_s'])} kills, most lost {most:.1f} s", flush=True)

        with ThreadPoolExecutor(chosen.jobs) as jobs:
            list(jobs.map(job, range(chosen.jobs)))
    record["kills"] = len(record["lost_s"])
    record["most_lost_s"] = max(record["lost_s"], default=0.0)
    record["held"] = record["most_lost_s"] <= LIMIT_SECONDS and record["identical"] == record["runs"]
    print(json.dumps({key: value for key, value in record.items() if key != "lost_s"}))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"provenance": {**source_state(), "cores": os.cpu_count()}, **record}, indent=2) + "\n")


if __name__ == "__main__":
    main()
