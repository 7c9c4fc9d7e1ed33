"""A task in place of a training, for tests of everything around trainings."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def stub(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pretend to train: the value is largest at a learning rate of 0.03 and falls with its logarithm."""
    value = -abs(math.log10(arguments["config"]["lr"] / 0.03))
    return {"status": "complete", "log_likelihood": value, "steps": 1, "seconds": 0.0, "message": ""}


def stub_that_dies_once(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Kill the worker at the first attempt, as the system does when memory is short."""
    mark = Path(f"{arguments['folder']}.died")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return stub(arguments)


def stub_that_fails(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Fail for large learning rates."""
    if arguments["config"]["lr"] > 0.05:
        raise ValueError("the rate is too large")
    return stub(arguments)
