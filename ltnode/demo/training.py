"""Training of the demo's models, several at a time, each in a process of its own."""

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
"""Of the solver: at the default 1e-2 its error shows in the curves where no data hold them."""
_LOG_EVERY = 20
_POLL_S = 0.4

Watch = Callable[[str, int], None]
"""Called with the name of a model and its steps done, now and then."""


def train_models(folders: dict[str, Path], seed: int, steps: int, jobs: int, watch: Watch | None = None) -> None:
    """Train each model in its run folder.

    Args:
        folders: Run folder of every model, by name; there must be no runs in them.
        seed: Of data, weights and end-times.
        steps: Training steps.
        jobs: Models trained at the same time; where the system allows no processes, one after the other.
        watch: Told about the progress when there are several jobs; with one, training shows its own bar.

    Raises:
        LTNodeError: A training failed; the message names the model.
    """
    left = list(folders) if jobs < 2 else _train_in_processes(folders, seed, steps, jobs, watch)
    for name in left:
        if failure := _train_one(name, folders[name], seed, steps, quiet=False):
            raise LTNodeError(f"{model_title(name)}: {failure}")


def _train_one(name: str, folder: Path, seed: int, steps: int, quiet: bool) -> str | None:
    """Train one model in its run folder; returns what went wrong, since errors do not all travel between processes."""
    data = gap_data(POINTS, seed)
    config = train_preset(name, data).replace(seed=seed, epochs=steps, device="cpu", log_every=_LOG_EVERY, data="synthetic")
    # Two bars of two processes on one terminal would overwrite each other.
    hidden = contextlib.redirect_stderr(io.StringIO()) if quiet else contextlib.nullcontext()
    try:
        with one_thread(), hidden:
            fit(build(name, data, seed=seed, **_options(name)), data, config, folder)
    except LTNodeError as error:
        return str(error)
    return None


def _options(name: str) -> dict[str, Any]:
    """The tolerance, for models that have an adaptive solver."""
    takes_solver = "solver" in inspect.signature(MODELS[name]).parameters
    return {"solver": {"rtol": TOLERANCE, "atol": TOLERANCE}} if takes_solver else {}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread: faster for networks this small, and the same numbers on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_in_processes(folders: dict[str, Path], seed: int, steps: int, jobs: int, watch: Watch | None) -> list[str]:
    """Train several models at a time; returns those that are left when the system allows no further processes."""
    # A fresh interpreter each: forking one that has started threads may hang.
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(jobs, mp_context=context)
    except (OSError, ImportError):
        return list(folders)
    try:
        # Those with many end-times take longest: begun first, they end together with the others.
        order = sorted(folders, key=lambda name: name == "node")
        futures = {name: pool.submit(_train_one, name, folders[name], seed, steps, True) for name in order}
        _await(futures, folders, watch)
    except BrokenProcessPool:
        pool.shutdown(wait=True)
        for folder in folders.values():
            if not _is_complete(folder):
                remove_folder(folder)
        return [name for name, folder in folders.items() if not _is_complete(folder)]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    for name, future in futures.items():
        if failure := future.result():
            raise LTNodeError(f"{model_title(name)}: {failure}")
    return []


def _await(futures: dict[str, Future[str | None]], folders: dict[str, Path], watch: Watch | None) -> None:
    """Wait for all, telling how far each has come by its log."""
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


def _is_complete(folder: Path) -> bool:
    return (folder / "model.safetensors").exists()
