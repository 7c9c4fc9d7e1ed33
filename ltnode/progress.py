"""A progress bar on a terminal; nothing where standard error is not one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Reporter:
    """Receives the progress of some work; this base class ignores it."""

    def __call__(self, count: int) -> None:
        """Report that ``count`` further items are done."""

    def completed(self, total: int, note: str = "") -> None:
        """Report that ``total`` items are done in all, with a note to show after the remaining time."""


class _BarReporter(Reporter):
    def __init__(self, progress: Progress, description: str, total: int, unit: str) -> None:
        self._progress, self._unit, self._total = progress, unit, total
        self._task = progress.add_task(description, total=total, speed="", note="")
        self._started = False

    def __call__(self, count: int) -> None:
        self._progress.update(self._task, advance=count, speed=self._speed())

    def completed(self, total: int, note: str = "") -> None:
        if not self._started:
            # A resumed run starts at this number; what was done before must not count towards the speed.
            self._progress.reset(self._task, total=self._total, completed=total)
            self._started = True
        self._progress.update(self._task, completed=total, speed=self._speed())
        if note:
            self._progress.update(self._task, note=note)

    def _speed(self) -> str:
        speed = self._progress.tasks[0].speed
        return "" if speed is None else f"{speed:.1f} {self._unit}/s"


@contextmanager
def progress_bar(description: str, total: int, unit: str = "predictions", shown: bool = True) -> Iterator[Reporter]:
    """Show a bar with completed items, speed and remaining time on standard error; quiet when that is not a terminal.

    Args:
        description: What is being done.
        total: Number of items of the whole work.
        unit: What the items are.
        shown: False keeps it quiet, for example in all processes but the first.
    """
    if not (shown and sys.stderr.isatty()):
        yield Reporter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _BarReporter(progress, description, total, unit)
