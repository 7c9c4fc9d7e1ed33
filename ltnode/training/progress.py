"""What a person sees while training: a bar on a terminal, nothing elsewhere; TensorBoard on request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ltnode.errors import missing_extra

Advance = Callable[[int, float | None], None]
"""Called with the number of steps done and, when it is known, the loss."""


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Advance]:
    """A bar with steps, loss, speed and remaining time on standard error; quiet when that is not a terminal.

    Args:
        total: Steps of the whole run.
        shown: False keeps it quiet, for all processes but the first.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda step, loss: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=total, speed="", loss="")
        first = True

        def advance(step: int, loss: float | None) -> None:
            nonlocal first
            if first:  # what a resumed run did before says nothing about the speed of this one
                progress.reset(task, total=total, completed=step)
                first = False
            speed = progress.tasks[0].speed
            progress.update(task, completed=step, speed="" if speed is None else f"{speed:.1f} steps/s")
            if loss is not None:
                progress.update(task, loss=f"loss {loss:.4g}")

        yield advance


def tensorboard_writer() -> Any:
    """The class that writes event files.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_extra("tensorboard", "tensorboard", "tensorboard = true") from None
    return SummaryWriter


@contextmanager
def tensorboard(folder: Path | None, step: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A writer of metrics lines for TensorBoard; with no folder, one that does nothing.

    Args:
        folder: Where its event files go.
        step: Continue after this step: later points of an interrupted run are hidden.
    """
    if folder is None:
        yield lambda line: None
        return
    writer = tensorboard_writer()(str(folder), purge_step=step)

    def write(line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if isinstance(value, Mapping):
                for inner, number in value.items():
                    writer.add_scalar(f"{name}/{inner}", number, line["step"])
            elif isinstance(value, int | float) and name != "step":
                writer.add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        writer.close()
