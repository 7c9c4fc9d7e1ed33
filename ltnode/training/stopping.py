"""Ctrl-C, termination signals and a closed terminal: a training finishes its step, writes a checkpoint, and then stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class StopRequest:
    """The signal that requested a stop; None before."""

    signal: int | None = None


@contextmanager
def stop_requests(enabled: bool) -> Iterator[StopRequest]:
    """Record SIGINT, SIGTERM and SIGHUP instead of stopping in the middle of a step; a second SIGINT stops at once.

    Signals that the process ignores stay ignored: a shell starts background jobs (``nohup ltnode train ... &``) with SIGINT
    ignored, so that Ctrl-C stops the foreground job only, and nohup ignores SIGHUP, so that the job survives its terminal.

    Args:
        enabled: False changes no signal handler. Outside of the main thread handlers are never changed.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}

    def record(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number

    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler that Python cannot restore
            before[number] = signal.signal(number, record)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
