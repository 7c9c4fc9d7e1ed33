"""What a person sees while evaluating: a bar per protocol on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(protocol: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with predicted examples, speed and remaining time on standard error; quiet when that is not a terminal.

    Args:
        protocol: What is being done.
        total: Examples to predict.

    Yields:
        A function to call with the number of examples that were just predicted.
    """
    if not sys.stderr.isatty():
        yield lambda examples: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(protocol, total=total, speed="")

        def advance(examples: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(task, advance=examples, speed="" if speed is None else f"{speed:.0f} predictions/s")

        yield advance
