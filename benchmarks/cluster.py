"""What an engine costs: seconds per trial of a sweep with a stub trainer, and batch prediction beside a plain loop.

usage: python benchmarks/cluster.py [--engines local ray] [--trials 1000] [--rows 1000000] [--images 50000] [--json FILE]

Every prediction runs as a command of its own with one worker on one core, and so does the plain loop, which reads the same files,
predicts the same batches and writes the same tables in one process. Three ratios are recorded: of the wall time of the commands;
of the processor time of all their processes, which is the one to trust on a busy machine; and of the rates after the first block,
which leave out how long Ray, torch and the worker take to start. The prediction of the rows is also killed in the middle and
repeated. An existing record is continued: rows of the same engine are replaced.
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
from ltnode.cluster.blocks import find_blocks, read_block
from ltnode.cluster.engines import make_executor
from ltnode.cluster.predict_block import block_table
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.sweep import Sweep
from ltnode.cluster.sweep_report import write_report
from ltnode.trained import TrainedModel
from ltnode.training.provenance import source_state

HERE = Path(__file__).resolve().parent
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


def timed(command: list[str], parts: Path | None = None, kill_at: int | None = None) -> dict[str, Any]:
    """Run a command: wall seconds, and of it and all its descendants processor seconds and the largest memory of a process."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    family: set[int] = {process.pid}
    memory: list[int] = []
    seconds: dict[int, float] = {}
    while process.poll() is None:
        seen = _processes()
        family |= _descendants(family, seen)
        seconds |= {pid: seen[pid][1] for pid in family & seen.keys()}
        memory.append(max((seen[pid][2] for pid in family & seen.keys()), default=0))
        if kill_at is not None and parts is not None and len(list(parts.glob("part-*"))) >= kill_at:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.2)
    half = len(memory) // 2
    return {
        "status": process.returncode,
        "wall_seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(sum(seconds.values()), 1),
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


def steady_rate(output: Path) -> float:
    """Inputs a second after the first block was written, so that the start of the programs is not counted."""
    written = sorted((file.stat().st_mtime, parquet.read_metadata(file).num_rows) for file in output.glob("part-*"))
    return sum(rows for _, rows in written[1:]) / (written[-1][0] - written[0][0])


def predictions(kind: str, engine: str, run: Path, inputs: Path, n: int, folder: Path) -> dict[str, Any]:
    """One prediction of all inputs, beside the plain loop."""
    script = [sys.executable, str(HERE / "cluster.py"), "--plain", str(run), str(inputs), str(folder / "plain")]
    plain = timed(script)
    output = folder / engine
    command = [sys.executable, "-m", "ltnode.cli", "predict", str(run), "--input", str(inputs), "--output", str(output)]
    command += ["--engine", engine, "--jobs", "1", "--device", "cpu"]
    measured = timed(command)
    return {
        "what": kind,
        "engine": engine,
        "inputs": n,
        "written": _rows(output),
        "plain": plain,
        "measured": measured,
        "inputs_per_second": round(n / measured["wall_seconds"]),
        "inputs_per_second_plain": round(n / plain["wall_seconds"]),
        "ratio_of_wall": round(plain["wall_seconds"] / measured["wall_seconds"], 3),
        "ratio_of_cpu": round(plain["cpu_seconds"] / measured["cpu_seconds"], 3),
        "ratio_after_the_first_block": round(steady_rate(output) / steady_rate(folder / "plain"), 3),
    }


def killed(run: Path, inputs: Path, n: int, folder: Path) -> dict[str, Any]:
    """Kill the prediction in the middle, repeat it, and count every row."""
    output = folder / "killed"
    command = [sys.executable, "-m", "ltnode.cli", "predict", str(run), "--input", str(inputs), "--output", str(output)]
    first = timed([*command, "--jobs", "1", "--device", "cpu"], output, kill_at=len(find_blocks([str(inputs)])) // 2)
    kept = _rows(output)
    timed([*command, "--jobs", "1", "--device", "cpu"])
    seen = arrow.concat_tables([parquet.read_table(file, columns=["input", "row"]) for file in sorted(output.glob("part-*"))])
    pairs = set(zip(seen["input"].to_pylist(), seen["row"].to_pylist(), strict=True))
    return {
        "killed_with_status": first["status"],
        "rows_kept": kept,
        "rows": seen.num_rows,
        "different_rows": len(pairs),
        "inputs": n,
    }


def _rows(output: Path) -> int:
    return sum(parquet.read_metadata(file).num_rows for file in output.glob("part-*"))


def plain_loop(run: Path, inputs: str, output: Path) -> None:
    """The same reading, predicting and writing in one loop."""
    torch.set_num_threads(1)
    trained = TrainedModel.open(run, "cpu")
    output.mkdir(parents=True)
    for block in find_blocks([inputs]):
        parquet.write_table(block_table(trained, read_block(block, trained), 10), output / block.name)


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
    parser.add_argument("--plain", nargs=3, metavar=("RUN", "INPUTS", "OUTPUT"), help="only the plain loop")
    chosen = parser.parse_args()
    if chosen.plain:
        plain_loop(Path(chosen.plain[0]), chosen.plain[1], Path(chosen.plain[2]))
        return
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
        others = [old for old in record.get(kind, []) if any(old.get(key) != row.get(key) for key in ("engine", "what"))]
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
            if kind == "rows":
                keep("killed_and_repeated", killed(run, inputs, n, folder))


if __name__ == "__main__":
    main()
