"""Metrics of a run as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ltnode.errors import missing_extra


def tensorboard_writer() -> Any:
    """Return the class that writes event files.

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
    """Yield a function that writes a line of metrics for TensorBoard; without a folder, one that does nothing.

    Points of an interrupted run that lie after ``step``, where it continues, are hidden.
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
