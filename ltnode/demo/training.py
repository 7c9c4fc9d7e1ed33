"""Training of the demo's models, several at a time in separate processes."""

from __future__ import annotations

import contextlib
import inspect
import io
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from ltnode.data import gap_data
from ltnode.errors import LTNodeError
from ltnode.files import remove_folder
from ltnode.models import MODELS, build
from ltnode.report.naming import model_title
from ltnode.training import fit, train_preset

STEPS = 600
POINTS = 300
TOLERANCE = 1e-3
"""Tolerance of the solver: with the default of 1e-2, its error is visible in the curves where there are no data."""
_LOG_EVERY = 20
_POLL_S = 0.4

Watch = Callable[[str, int], None]
"""Function that is called from time to time with the name of a model and the number of its finished steps."""


def train_models(folders: dict[str, Path], seed: int, steps: int, jobs: int, watch: Watch | None = None) -> None:
    """Train each model in its run folder.

    Args:
        folders: Run folder of every model, by name; they must not contain runs.
        seed: Seed of the data, weights and end-times.
        steps: Training steps.
        jobs: Number of models that are trained at the same time. If processes cannot be started, models are trained in turn.
        watch: Function that is told about the progress of several jobs; a single job shows its own progress bar.

    Raises:
        LTNodeError: A training failed; the message names the model.
    """
    left = list(folders) if jobs < 2 else _train_in_processes(folders, seed, steps, jobs, watch)
    for name in left:
        if failure := _train_one(name, folders[name], seed, steps, quiet=False):
            raise LTNodeError(f"{model_title(name)}: {failure}")


def _train_one(name: str, folder: Path, seed: int, steps: int, quiet: bool) -> str | None:
    """Train one model in its run folder. Returns the message of an error, since not every error can be sent between processes."""
    data = gap_data(POINTS, seed)
    config = train_preset(name, data).replace(seed=seed, epochs=steps, device="cpu", log_every=_LOG_EVERY, data="synthetic")
    # The progress bars of two processes would overwrite each other on the terminal.
    hidden = contextlib.redirect_stderr(io.StringIO()) if quiet else contextlib.nullcontext()
    try:
        with one_thread(), hidden:
            fit(build(name, data, seed=seed, **_options(name)), data, config, folder)
    except LTNodeError as error:
        return str(error)
    return None


def _options(name: str) -> dict[str, Any]:
    """Options of the model: the tolerance, if it has an adaptive solver."""
    takes_solver = "solver" in inspect.signature(MODELS[name]).parameters
    return {"solver": {"rtol": TOLERANCE, "atol": TOLERANCE}} if takes_solver else {}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, which is faster for such small networks and gives the same numbers on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_in_processes(folders: dict[str, Path], seed: int, steps: int, jobs: int, watch: Watch | None) -> list[str]:
    """Train several models at a time; returns the names of those that are left if no more processes can be started."""
    # Start fresh interpreters, because forking a process that has started threads may hang.
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(jobs, mp_context=context)
    except (OSError, ImportError):
        return list(folders)
    try:
        # Models with many end-times take longest, so they are started first.
        order = sorted(folders, key=lambda name: name == "node")
        futures = {name: pool.submit(_train_one, name, folders[name], seed, steps, True) for name in order}
        _await(futures, folders, watch)
    except BrokenProcessPool:
        pool.shutdown(wait=True)
        left = [name for name, folder in folders.items() if not (folder / "model.safetensors").exists()]
        for name in left:
            remove_folder(folders[name])
        return left
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    for name, future in futures.items():
        if failure := future.result():
            raise LTNodeError(f"{model_title(name)}: {failure}")
    return []


def _await(futures: dict[str, Future[str | None]], folders: dict[str, Path], watch: Watch | None) -> None:
    """Wait for all jobs, and report the progress of each from its training log."""
    while True:
        done, waiting = wait(futures.values(), timeout=_POLL_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        if watch is not None:
            for name, folder in folders.items():
                watch(name, _steps_done(folder))
        if not waiting:
            return


def _steps_done(folder: Path) -> int:
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n") * _LOG_EVERY
    except OSError:
        return 0
