"""Ctrl-C and termination signals: a training finishes its step, writes a checkpoint, and then stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """The signal that requested a stop; None before."""

    signal: int | None = None


@contextmanager
def stop_requests(enabled: bool) -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying in the middle of a step; a second SIGINT stops at once.

    Outside of the main thread, signals have their usual effect even if this is enabled.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number

    before = {caught: signal.signal(caught, note) for caught in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
