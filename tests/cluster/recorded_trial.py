"""A training as a task that also writes down every step, so that a test knows which process trained what."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ltnode.cluster import trial

PAUSE = 0.04
"""Seconds per step, so that a node can be killed in the middle of a training."""


def train_recorded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `ltnode.cluster.trial.train_trial`; steps are in ``DIR/../steps/TRIAL.txt``, one line per step."""
    import ray

    folder = Path(arguments["folder"])
    file = folder.parents[1] / "steps" / f"{folder.name}.txt"
    file.parent.mkdir(exist_ok=True)
    node = ray.get_runtime_context().get_node_id()

    def record(event: Mapping[str, Any]) -> None:
        with file.open("a") as lines:
            lines.write(f"{os.getpid()} {node} {event['step']}\n")
        time.sleep(PAUSE)

    original = trial.fit
    trial.fit = functools.partial(original, on_step=record)  # type: ignore[assignment]
    try:
        return trial.train_trial(arguments)
    finally:
        trial.fit = original
