"""Functions of the caller that a training calls while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Callback = Callable[[Mapping[str, Any]], None]
"""Gets one table that says what has happened."""


def _ignore(event: Mapping[str, Any]) -> None:
    pass


@dataclass(frozen=True)
class Callbacks:
    """What to call when; an exception ends the training, which can be resumed from its last checkpoint.

    With several processes, all of them call ``on_step`` and ``on_epoch``; only the first one writes checkpoints.

    Attributes:
        on_step: Called after every step with ``step`` (from 1), ``epoch`` (from 0), ``total_steps`` and ``loss``, a tensor on the
            device; ``float(event["loss"])`` waits for the device, so do it only now and then on a GPU.
        on_epoch: Called after every epoch with ``epoch`` (from 0), ``step`` and ``log``, the last line of metrics.jsonl or None.
        on_checkpoint: Called after a checkpoint is on disk with ``step`` and ``path``, its folder.
    """

    on_step: Callback = _ignore
    on_epoch: Callback = _ignore
    on_checkpoint: Callback = _ignore

    @classmethod
    def of(cls, on_step: Callback | None, on_epoch: Callback | None, on_checkpoint: Callback | None) -> Callbacks:
        """Collect the functions that are not None."""
        return cls(on_step or _ignore, on_epoch or _ignore, on_checkpoint or _ignore)
