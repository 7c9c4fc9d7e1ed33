"""Train on and predict large generated tables by commands: time, peak memory, and whether there is a progress bar.

``python benchmarks/large_tables.py --json benchmarks/results/large_tables.json`` writes tables of 10,000 and of 100,000 rows with
50 columns into a temporary folder, trains LT-NODE with its defaults, and predicts all rows: as one file, and block by block.
Each command is a process of its own, whose peak memory the operating system measures. ``--rows 1000 --columns 10``: a quick try.

``python benchmarks/large_tables.py --estimator --rows 100000 --json benchmarks/results/large_estimator.json`` fits and predicts
such tables by `ltnode.LTNodeRegressor` with its defaults instead, in one process for each table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from own_process import cost_of_command

import ltnode
from ltnode.training.provenance import source_state

EVERY = 5
"""Of so many columns, one holds categories, one dates, one booleans, and the others numbers, some of them missing."""


def table(rows: int, columns: int, seed: int = 0) -> pd.DataFrame:
    """A target that depends on all columns, a few of them strongly, with noise of a third of its spread."""
    rng = np.random.default_rng(seed)
    values, target = {}, np.zeros(rows)
    for number in range(columns - 1):
        x = rng.normal(size=rows)
        target += (np.sin(2 * x) + x) / (1 + number)
        match number % EVERY:
            case 0:
                values[f"category_{number}"] = np.array([f"level {level}" for level in range(20)])[
                    np.clip(4 * x + 10, 0, 19).astype(int)
                ]
            case 1:
                values[f"date_{number}"] = (pd.Timestamp("2024-01-01") + pd.to_timedelta((100 * x).astype(int), "D")).strftime(
                    "%Y-%m-%d"
                )
            case 2:
                values[f"boolean_{number}"] = np.where(x > 0, "yes", "no")
            case _:
                values[f"number_{number}"] = np.where(rng.random(rows) < 0.05, np.nan, x.round(4))
    target += target.std() / 3 * rng.normal(size=rows)
    return pd.DataFrame({**values, "target": target.round(4)})


def measured(rows: int, columns: int, folder: Path) -> dict[str, Any]:
    """Generate a table, train, and predict its rows in two ways."""
    frame = table(rows, columns)
    whole, blocks, run = folder / f"{rows}.csv", folder / f"{rows}.parquet", str(folder / f"run-{rows}")
    frame.to_csv(whole, index=False)
    frame.drop(columns="target").to_parquet(blocks)
    found: dict[str, Any] = {"rows": rows, "columns": columns, "file_mib": round(whole.stat().st_size / 2**20, 1)}
    found["train"] = cost_of_command("train", "--data", str(whole), "--target", "target", "--out", run)
    found["predict a file"] = cost_of_command("predict", run, str(whole), "--out", str(folder / f"{rows}-predictions.csv"))
    found["predict in blocks"] = cost_of_command(
        "predict", run, "--input", str(blocks), "--output", str(folder / f"blocks-{rows}")
    )
    return found


def estimated(rows: int, columns: int) -> dict[str, Any]:
    """Fit the estimator to a table, with a tenth of the rows for testing, and predict all rows."""
    frame = table(rows, columns)
    dates = [name for name in frame if name.startswith("date_")]
    x, y = (
        frame.drop(columns="target").assign(**{name: pd.to_datetime(frame[name]) for name in dates}),
        frame["target"].to_numpy(),
    )
    tested = np.arange(rows) % 10 == 0
    found: dict[str, Any] = {"rows": rows, "columns": columns, "mib_before": _peak_mib()}
    began = time.perf_counter(), time.process_time()
    model = ltnode.LTNodeRegressor(random_state=0).fit(x[~tested], y[~tested])
    found["fit"] = _cost(began)
    began = time.perf_counter(), time.process_time()
    mean, std = model.predict(x, return_std=True)
    found["predict"] = _cost(began)
    score = 1 - np.mean((mean[tested] - y[tested]) ** 2) / np.var(y[tested])
    inside = np.mean(np.abs(mean[tested] - y[tested]) <= 1.6449 * std[tested])
    return {
        **found,
        "epochs": model.n_iter_,
        "noise": model.noise_,
        "r2": round(float(score), 3),
        "coverage": round(float(inside), 3),
    }


def _cost(began: tuple[float, float]) -> dict[str, float]:
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), "peak_mib": _peak_mib()}


def _peak_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def in_own_process(rows: int, columns: int) -> dict[str, Any]:
    """`estimated` in a process of its own, whose peak memory has no other table in it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(estimated, rows, columns).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--columns", type=int, default=50, help="with the target")
    parser.add_argument("--estimator", action="store_true", help="the estimator in place of commands")
    parser.add_argument("--json", type=Path, help="where the record goes")
    options = parser.parse_args()
    record: dict[str, Any] = {"threads": os.environ.get("OMP_NUM_THREADS"), "machine": platform.machine(), **source_state()}
    record["tables"] = []
    with tempfile.TemporaryDirectory(prefix="ltnode-tables-") as folder:
        for rows in options.rows:
            found = in_own_process(rows, options.columns) if options.estimator else measured(rows, options.columns, Path(folder))
            record["tables"].append(found)
            print(record["tables"][-1], flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
