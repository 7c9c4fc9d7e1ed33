"""One training as a task of a worker, which continues from the last checkpoint of an attempt that was killed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ltnode.cluster.data_source import Source
from ltnode.cluster.storage import RunStorage
from ltnode.errors import FolderInUseError
from ltnode.fitting import fit
from ltnode.models import Model, build
from ltnode.training import Run, RunStatus, TrainConfig, TrainingError
from ltnode.training.run import RunFolder

FUNCTION = "ltnode.cluster.trial:train_trial"
LOG = "metrics.jsonl"
"""Name of the log, also in the storage."""
_PATIENCE_SECONDS = 120.0
"""How long an attempt waits for the process of an earlier one, which ends soon after its node was lost."""
_PUBLISH_SECONDS = 2.0
"""Least time between two uploads of the log."""


def train_trial(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Train one model to its end, from its last checkpoint if there is one.

    Args:
        arguments: ``config``: training configuration; ``source``: its data, as `Source.to_json` gives them; ``folder``: the run
            folder; ``storage``: path or URL of the run folder in shared storage, or None if all workers see ``folder``;
            ``threads``: number of threads.

    Returns:
        ``status``, ``steps``, ``seconds``, and ``log_likelihood`` of the held-out examples, None if there are none.
    """
    torch.set_num_threads(arguments["threads"])
    config = TrainConfig.from_json(arguments["config"])
    assert config.model is not None
    data = Source.of(arguments["source"]).load(config)

    def network() -> Model:
        return build(config.model, data, config.preset or "default", seed=config.seed, **config.model_options)  # type: ignore[arg-type]

    with _run_folder(arguments) as (folder, store):
        callbacks = {} if store is None else _uploading(store, folder)
        try:
            run = _patiently(lambda: fit(network(), data, config, folder, resume=True, **callbacks))
        except TrainingError as error:
            if store is not None:
                store.save(folder)
            if error.status is RunStatus.PEER_LOST:
                raise
            return {"status": error.status.value, "message": error.what, "log_likelihood": None, "steps": 0, "seconds": 0.0}
        if store is not None:
            store.save(folder)
        return describe_run(run)


def describe_run(run: Run) -> dict[str, Any]:
    """What a sweep keeps of a finished training."""
    last = run.history[-1] if run.history else {}
    return {
        "status": run.status.value,
        "message": run.results.get("message") or "",
        "log_likelihood": last.get("validation", {}).get("log_likelihood"),
        "steps": run.results["steps"],
        "seconds": run.results["provenance"]["wall_time_s"],
    }


@contextmanager
def _run_folder(arguments: Mapping[str, Any]) -> Iterator[tuple[Path, RunStorage | None]]:
    """The run folder itself, or a folder of this machine with what the storage has of it."""
    if arguments.get("storage") is None:
        yield Path(arguments["folder"]), None
        return
    store = RunStorage(arguments["storage"])
    with tempfile.TemporaryDirectory(prefix="ltnode-trial-") as scratch:
        folder = Path(scratch) / "run"
        store.restore(folder)
        yield folder, store


def _uploading(store: RunStorage, folder: Path) -> dict[str, Any]:
    """Callbacks that bring checkpoints, and from time to time the log, to the storage."""
    published = [0.0]

    def save(event: Mapping[str, Any]) -> None:
        store.save(folder)

    def publish(line: Mapping[str, Any]) -> None:
        if "validation" in line and time.monotonic() - published[0] >= _PUBLISH_SECONDS:
            store.publish(LOG, RunFolder(folder).metrics.read_bytes())
            published[0] = time.monotonic()

    return {"on_checkpoint": save, "on_log": publish}


def _patiently(train: Callable[[], Run]) -> Run:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return train()
        except FolderInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
