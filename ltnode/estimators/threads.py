"""The number of threads of torch, and of the matrix products of numpy, while an estimator computes.

A small network gains nothing from several threads, and on a machine whose cores are busy, for example with the ``n_jobs`` of a
grid search, waiting for them makes a fit many times slower.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from ltnode.checks import checked_count
from ltnode.errors import InputError

SMALL_WIDTH = 128
"""Widest network that computes with one thread unless told otherwise."""


class _Setting:
    """The setting of the process while estimators use another one."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, 1
        self.products: threadpool_limits | None = None


_SETTING = _Setting()


def chosen_threads(n_threads: int | str, width: int) -> int | None:
    """Number of threads for a network of some width; None leaves the setting of the process as it is.

    Raises:
        InputError: ``n_threads`` is neither ``"auto"`` nor a number of threads.
    """
    if n_threads == "auto":
        return 1 if width <= SMALL_WIDTH else None
    if isinstance(n_threads, str):
        raise InputError(f"n_threads must be 'auto' or an integer >= 1, not {n_threads!r}")
    return checked_count("n_threads", n_threads)


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Compute with this many threads, and restore the setting of the process afterwards, also after an error.

    Blocks in several Python threads may overlap: all of them restore the setting from before the first one.
    """
    if count is None:
        yield
        return
    with _SETTING.lock:
        if _SETTING.users == 0:
            _SETTING.before = torch.get_num_threads()
            _SETTING.products = threadpool_limits(count, user_api="blas")
        _SETTING.users += 1
    try:
        torch.set_num_threads(count)
        yield
    finally:
        with _SETTING.lock:
            _SETTING.users -= 1
            torch.set_num_threads(_SETTING.before)
            if _SETTING.users == 0 and _SETTING.products is not None:
                _SETTING.products.restore_original_limits()
