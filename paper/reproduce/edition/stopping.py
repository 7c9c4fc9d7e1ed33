"""The end of a session's time, which stops whatever runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeOverError(KeyboardInterrupt):
    """The time of a session is over."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """End the block with a `TimeOverError` after some seconds; a training that runs then writes its checkpoint first.

    SIGTERM, which the alarm sends, also stops the block when it comes from elsewhere, as a KeyboardInterrupt.
    """
    is_over = False

    def alarm(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        signal.raise_signal(signal.SIGTERM)  # a training has its own handler for this signal

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeOverError if is_over else KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGALRM, alarm)
    if seconds < float("inf"):
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
