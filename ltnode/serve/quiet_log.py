"""A log that stays short under pressure: of each message, the first few lines of a minute are written and the others counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_LINES = 3
_SECONDS = 60.0
_MOST_MESSAGES = 200
NOISY = ("asyncio", "uvicorn.error", "ltnode.serve")
"""Loggers to which a client can cause lines."""


class QuietFilter(logging.Filter):
    """Lets three lines per message and minute pass; the first line after that minute says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line; the message before formatting identifies it."""
        now, key = self._clock(), f"{record.levelno} {str(record.msg)[:80]}"
        since, count = self._seen.get(key, (now, 0))
        if now - since > _SECONDS:
            if count > _LINES:
                record.msg = f"{record.msg} ({count - _LINES} such lines were left out in the last minutes)"
            since, count = now, 0
        if len(self._seen) >= _MOST_MESSAGES and key not in self._seen:
            self._seen.clear()
        self._seen[key] = (since, count + 1)
        return count < _LINES


def install() -> None:
    """Filter the loggers of the server; calling this again has no effect."""
    for name in NOISY:
        logger = logging.getLogger(name)
        if not any(isinstance(known, QuietFilter) for known in logger.filters):
            logger.addFilter(QuietFilter())
