"""What an engine costs: seconds per trial of a sweep with a stub trainer, and batch prediction beside a plain loop.

usage: python benchmarks/cluster.py [--engines local ray] [--trials 1000] [--rows 1000000] [--images 50000] [--json FILE]

Every prediction runs as a command of its own with one worker on one core. The loop it is compared with, `plain_loop.py`, is what
one would write by hand: it reads the same files, predicts batches of the same size and writes the same columns in one process.
Both count from the start of their program to its end, with all imports. Three ratios are recorded, each the cost of the loop by
that of the command: of the processor time of all their processes (of Ray's, too), which is the one to trust on a busy machine; of
the processor time from the first to the last file of the output, which leaves out all starts; and of the wall time. Then the
prediction is killed in the middle and repeated. An existing record is continued: measurements of the same are replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import torch
from PIL import Image
from pyarrow import parquet

import ltnode
from ltnode.cluster.blocks import find_blocks
from ltnode.cluster.engines import make_executor
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.sweep import Sweep
from ltnode.cluster.sweep_report import write_report
from ltnode.training.provenance import source_state

HERE = Path(__file__).resolve().parent
KEYS = ("engine", "what", "inputs")
"""What a measurement replaces in the record: the earlier one of the same."""
SWEEP = {
    "model": "lt-node",
    "data": "synthetic",
    "strategy": "random",
    "search": {"lr": {"low": 0.0001, "high": 0.3, "log": True}, "weight_decay": [0.0, 0.001]},
}


def sweep_overhead(engine: str, trials: int, folder: Path) -> dict[str, Any]:
    """Seconds per trial of a sweep whose trainings take no time, and of its report."""
    os.environ["PYTHONPATH"] = f"{HERE}:{HERE.parent}"
    spec = SweepSpec.of({**SWEEP, "trials": trials})
    with make_executor(engine, jobs=2, device="cpu") as executor:
        Sweep(SweepSpec.of({**SWEEP, "trials": 4}), folder / "warm", executor, function="stub_trainer:train").run()
        began = time.monotonic()
        result = Sweep(spec, folder / "sweep", executor, function="stub_trainer:train").run()
        seconds = time.monotonic() - began
    began = time.monotonic()
    page = write_report(spec, result, folder / "sweep")
    size = sum(file.stat().st_size for file in (folder / "sweep").glob("*") if file.is_file())
    return {
        "engine": engine,
        "trials": len(result.trials),
        "complete": sum(trial.status == "complete" for trial in result.trials),
        "milliseconds_per_trial": round(1000 * seconds / trials, 2),
        "report_seconds": round(time.monotonic() - began, 2),
        "report_bytes": page.stat().st_size,
        "bytes_of_metadata_per_trial": round(size / trials),
    }


def timed(command: list[str], output: Path, kill_at: int | None = None) -> dict[str, Any]:
    """Run a prediction: wall seconds, and of it and all its descendants processor seconds and the largest memory of a process.

    The processor seconds are also given from when the first files of the output were seen to when the last one was, with their
    number.
    """
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    family: set[int] = {process.pid}
    memory: list[int] = []
    seconds: dict[int, float] = {}
    progress: list[tuple[int, float]] = []  # files that were written, and processor seconds until then
    while process.poll() is None:
        written = len(list(output.glob("part-*")))
        seen = _processes()
        family |= _descendants(family, seen)
        seconds |= {pid: seen[pid][1] for pid in family & seen.keys()}
        memory.append(max((seen[pid][2] for pid in family & seen.keys()), default=0))
        if written and (not progress or written > progress[-1][0]):
            progress.append((written, sum(seconds.values())))
        if kill_at is not None and written >= kill_at:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.1)
    half, (first, used), (last, used_at_last) = len(memory) // 2, progress[0], progress[-1]
    return {
        "status": process.returncode,
        "wall_seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(sum(seconds.values()), 1),
        "cpu_seconds_between_files": round(used_at_last - used, 2),
        "files_between": last - first,
        "peak_mib_first_half": max(memory[:half], default=0) >> 20,
        "peak_mib_second_half": max(memory[half:], default=0) >> 20,
    }


def _processes() -> dict[int, tuple[int, float, int]]:
    """Parent, processor seconds and resident bytes of every process of this machine."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found[int(status.parent.name)] = (int(fields[1]), seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    return found


def _descendants(family: set[int], processes: dict[int, tuple[int, float, int]]) -> set[int]:
    """The children of a family, their children, and so on."""
    found: set[int] = set()
    while more := {pid for pid, (parent, *_) in processes.items() if parent in family | found} - family - found:
        found |= more
    return found


def predictions(kind: str, engine: str, run: Path, inputs: Path, n: int, folder: Path) -> dict[str, Any]:
    """One prediction of all inputs, and the plain loop just before it."""
    plain = timed([sys.executable, str(HERE / "plain_loop.py"), str(run), str(inputs), str(folder / "plain")], folder / "plain")
    output = folder / engine
    measured = timed(_command(engine, run, inputs, output), output)
    return {
        "what": kind,
        "engine": engine,
        "inputs": n,
        "written": _rows(output),
        "written_by_the_loop": _rows(folder / "plain"),
        "plain": plain,
        "measured": measured,
        "inputs_per_second": round(n / measured["cpu_seconds"]),
        "inputs_per_second_plain": round(n / plain["cpu_seconds"]),
        "ratio_of_cpu": round(plain["cpu_seconds"] / measured["cpu_seconds"], 3),
        "ratio_of_cpu_between_files": round(_steady_rate(measured) / _steady_rate(plain), 3),
        "ratio_of_wall": round(plain["wall_seconds"] / measured["wall_seconds"], 3),
    }


def _command(engine: str, run: Path, inputs: Path, output: Path) -> list[str]:
    command = [sys.executable, "-m", "ltnode.cli", "predict", str(run), "--input", str(inputs), "--output", str(output)]
    return [*command, "--engine", engine, "--jobs", "1", "--device", "cpu"]


def _steady_rate(run: dict[str, Any]) -> float:
    return float(run["files_between"] / run["cpu_seconds_between_files"])


def killed(kind: str, engine: str, run: Path, inputs: Path, n: int, folder: Path) -> dict[str, Any]:
    """Kill the prediction in the middle, repeat it, and count every row."""
    output = folder / "killed"
    command = _command(engine, run, inputs, output)
    first = timed(command, output, kill_at=len(find_blocks([str(inputs)])) // 2)
    time.sleep(5)  # workers of a cluster notice a moment later that their caller is gone
    kept = {file.name: file.stat().st_mtime_ns for file in output.glob("part-*")}
    rows_kept = _rows(output)
    again = timed(command, output)
    files = sorted(output.glob("part-*"))
    seen = arrow.concat_tables([parquet.read_table(file, columns=["input", "row"]) for file in files])
    pairs = set(zip(seen["input"].to_pylist(), seen["row"].to_pylist(), strict=True))
    return {
        "what": kind,
        "engine": engine,
        "inputs": n,
        "killed_with_status": first["status"],
        "repeated_with_status": again["status"],
        "rows_kept": rows_kept,
        "kept_files_untouched": all((output / name).stat().st_mtime_ns == written for name, written in kept.items()),
        "rows": seen.num_rows,
        "different_rows": len(pairs),
    }


def _rows(output: Path) -> int:
    return sum(parquet.read_metadata(file).num_rows for file in output.glob("part-*"))


def make_rows(folder: Path, n: int) -> tuple[Path, Path]:
    """A model of vectors, and Parquet files of rows."""
    data = ltnode.data.load("synthetic")
    config = ltnode.train_preset("lt-node", "synthetic").replace(epochs=20, device="cpu")
    ltnode.fit(ltnode.build("lt-node", data, seed=0), data, config, folder / "points")
    (folder / "rows").mkdir()
    generator = np.random.default_rng(0)
    for number in range(4):
        x = generator.normal(size=n // 4)
        parquet.write_table(arrow.table({"x": x}), folder / "rows" / f"{number}.parquet")
    return folder / "points", folder / "rows"


def make_images(folder: Path, n: int) -> tuple[Path, Path]:
    """A small model of images, untrained since only time matters, and PNG files of noise."""
    run = ltnode.save(ltnode.build("lt-node", "mnist", seed=0, width=8), folder / "digits")
    generator = np.random.default_rng(0)
    for number in range(n):
        place = folder / "images" / f"{number // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (28, 28), dtype=np.uint8)).save(place / f"{number:06d}.png", compress_level=1)
    return run, folder / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-kill", action="store_true", help="do not kill and repeat the predictions")
    chosen = parser.parse_args()
    record: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "sweeps": [],
        "predictions": [],
    }

    if chosen.json and chosen.json.exists():
        record = {**json.loads(chosen.json.read_text()), **{key: record[key] for key in ("machine", "cores", "torch")}}

    def keep(kind: str, row: dict[str, Any]) -> None:
        row |= source_state()
        others = [old for old in record.get(kind, []) if any(old.get(key) != row.get(key) for key in KEYS)]
        record[kind] = [*others, row]
        print(json.dumps(row), flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for engine in chosen.engines if chosen.trials else ():
            keep("sweeps", sweep_overhead(engine, chosen.trials, folder / f"sweep-{engine}"))
        sources = {"rows": (make_rows, chosen.rows), "images": (make_images, chosen.images)}
        for kind, (make, n) in sources.items():
            if not n:
                continue
            (folder / kind).mkdir()
            run, inputs = make(folder / kind, n)
            for engine in chosen.engines:
                keep("predictions", predictions(kind, engine, run, inputs, n, folder / f"{kind}-{engine}"))
                if not chosen.no_kill:
                    keep("killed_and_repeated", killed(kind, engine, run, inputs, n, folder / f"{kind}-{engine}"))


if __name__ == "__main__":
    main()
