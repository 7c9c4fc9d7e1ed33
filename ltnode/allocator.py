"""How processes that predict batch after batch ask the operating system for memory.

Every layer of a prediction allocates its result. By default the allocator of glibc gives large blocks back to the system as soon
as they are free, so that the next prediction finds none of its pages, and a good part of its time goes into page faults. A
server and the workers of a batch prediction compute batches of the same sizes again and again, so they keep what their largest
batch has needed. Only processes that belong to ltnode are changed like this, as it lasts until they end.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of the options in malloc.h."""
_KEPT_BYTES = 256 << 20
_LARGEST_BLOCK = 32 << 20
"""Larger blocks cannot come from memory that is kept."""


def keep_memory() -> bool:
    """Keep up to 256 MiB of free memory for later predictions of this process; returns whether the allocator can.

    Only the allocator of glibc has these options. All threads share one arena: those of other threads always give memory back.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    options = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _KEPT_BYTES))
    accepted = [set_option(name, value) == 1 for name, value in options]  # all of them, whatever the first one answers
    return all(accepted)
