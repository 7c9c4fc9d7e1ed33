"""``ltnode demo``: train four models on data with a gap in under three minutes, and check what they predict without data.

The demo uses the default settings, not the paper's: small networks without BatchNorm, Adam, fewer points, and posteriors that are
truncated to the training window.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ltnode.data import gap_data
from ltnode.demo.gaussian_process import fit_gaussian_process
from ltnode.demo.page import draw_figures, setting_text, write_page
from ltnode.demo.results import HEADER, WORDS, Row, cells, measure, measure_process, verdicts
from ltnode.demo.training import POINTS, STEPS, Watch, one_thread, train_models
from ltnode.errors import InputError, unknown_name
from ltnode.files import read_json, remove_folder, write_json
from ltnode.models import MODELS
from ltnode.training import load

__all__ = ["DEFAULT_MODELS", "HEADER", "WORDS", "DemoResult", "cells", "run_demo", "setting_text", "verdicts"]

DEFAULT_MODELS = ("node", "uni-node", "lt-node", "alt-node")


@dataclass(frozen=True)
class DemoResult:
    """The measurements of the models and of the Gaussian process, the path of the page, and the total wall time in seconds."""

    rows: tuple[Row, ...]
    process: Row
    page: Path
    seconds: float


def run_demo(
    out: Path,
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    seed: int = 0,
    steps: int = STEPS,
    jobs: int | None = None,
    watch: Watch | None = None,
) -> DemoResult:
    """Train and measure the models, and write runs, figures, results.json and index.html.

    Args:
        out: Folder of the demo; runs of an earlier demo in it are replaced.
        models: Names of models for `ltnode.build`.
        seed: Seed of the data, weights and end-times.
        steps: Training steps.
        jobs: Number of models that are trained at the same time, in separate processes; by default 2 if there are two cores.
        watch: Function that is told about the progress of several jobs; a single job shows its own progress bar.
    """
    began = time.monotonic()
    folders = _folders(out, models)
    train_models(folders, seed, steps, min(2, _cores(), len(models)) if jobs is None else jobs, watch)
    data = gap_data(POINTS, seed)
    records = {n: read_json(f / "results.json", lambda v: isinstance(v, dict), "a run folder") for n, f in folders.items()}
    provenance = {name: record["provenance"] for name, record in records.items()}
    with one_thread():
        trained = {name: load(folder) for name, folder in folders.items()}
        process = fit_gaussian_process(data.train.x, data.train.y)
        seconds = {name: float(provenance[name]["wall_time_s"]) for name in folders}
        rows = tuple(measure(model, name, data, process, seconds[name]) for name, model in trained.items())
        yardstick = measure_process(process, data)
        figures = draw_figures(out / "figures", trained, rows, data, process)
    setting = {"points": POINTS, "steps": steps, "seed": seed, "preset": "default", "optimizer": "adam"}
    shown = [{**asdict(row), "misses": list(row.misses)} for row in rows]
    record = {"setting": setting, "rows": shown, "gaussian_process": asdict(yardstick), "provenance": provenance[models[0]]}
    write_json(out / "results.json", record)
    page = write_page(out, (*rows, yardstick), figures, setting, provenance[models[0]])
    return DemoResult(rows, yardstick, page, time.monotonic() - began)


def _folders(out: Path, models: Sequence[str]) -> dict[str, Path]:
    """Run folders by model, without the runs of an earlier demo."""
    for name in models:
        if name not in MODELS:
            raise InputError(unknown_name("model", name, MODELS))
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the demo, which is made if it does not exist")
    folders = {name: out / "runs" / name for name in models}
    for folder in folders.values():
        if (folder / "config.json").exists():
            remove_folder(folder)
    return folders


def _cores() -> int:
    """Number of cores that this process may use, which can be smaller than that of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
