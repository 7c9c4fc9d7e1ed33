"""Keeping freed memory: a process that predicts batch after batch need not ask the system for the same pages each time."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt, in malloc.h."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where the C library is glibc; elsewhere nothing happens.

    By default, glibc returns every large block at once, so that each tensor of each batch is mapped and zeroed anew by the
    system. The peak of the process stays the same. Only for processes that belong to ltnode, as it lasts until they end.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, 1 << 30)
    library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
    library.mallopt(_ARENA_MAX, 1)  # the heaps of other threads are given back whatever the thresholds are
