"""What the command line writes, all through rich: results on standard output, errors and the log on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ltnode.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_WIDTH = 160
"""Of output that goes to a file or a pipe, where rich would guess 80 and cut tables."""
INTERRUPTED = 130


def out() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH)


def error(message: str) -> None:
    """One red line on standard error."""
    err().print(Text.assemble(("error: ", "bold red"), (" ".join(message.split()), "red")), soft_wrap=True)


def say(message: str, style: str = "") -> None:
    """A line of plain text on standard output."""
    out().print(Text(message, style=style), soft_wrap=True)


def example(*commands: str) -> str:
    """The end of a command's help: lines to copy."""
    word = "Example" if len(commands) == 1 else "Examples"
    return f"{word}:\n\n" + "\n\n".join(f"[bold]{escape(command)}[/bold]" for command in commands)


def table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), lines: bool = False
) -> None:
    """A table on standard output.

    Args:
        title: Above it; empty for none.
        header: Names of the columns; a line break in one saves width.
        rows: As many cells each.
        words: Columns that stand to the left; the others hold numbers and stand to the right.
        lines: Draw lines between the rows, for cells of several lines.
    """
    shown = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    shown.pad_edge, shown.show_lines = False, lines
    for column, name in enumerate(header):
        if column in words:
            # Where the terminal is narrow, texts wrap between words and numbers stay whole.
            longest = max((len(word) for row in rows for word in row[column].split()), default=0)
            shown.add_column(Text(name), min_width=longest)
        else:
            shown.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    out().print(shown)


def facts(values: Mapping[str, str]) -> None:
    """Names and values, one pair per line."""
    shown = Table(show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        shown.add_row(Text(name, style="dim"), Text(value))
    out().print(shown)


def words(text: str) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """The whole numbers of a list with commas, in which ``0-4`` stands for a range; at least one, each once.

    Raises:
        InputError: There is none, or something is not a whole number of at least 0 or a range of them.
    """
    found: dict[int, None] = {}
    for word in words(text):
        low, dash, high = word.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(low) > int(high)):
            raise _no_numbers(text)
        found |= dict.fromkeys(range(int(low), int(high if dash else low) + 1))
    if not found:
        raise _no_numbers(text)
    return list(found)


def _no_numbers(text: str) -> InputError:
    return InputError(f"expected whole numbers separated by commas, or a range of them: 0, 0,1,2 or 0-4, not {text!r}")


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """Ctrl-C inside ends the command with status 130 and one line that says how to go on.

    Args:
        how: What to do to continue.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        error(f"stopped. {how}")
        raise typer.Exit(INTERRUPTED) from stopped


def page_address(path: Path) -> str:
    """What to put into a browser to see a page."""
    return path.resolve().as_uri()


class _Log(logging.Handler):
    """Shows the lines of ltnode's own log on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        err().print(Text(record.getMessage(), style=style), soft_wrap=True)


def show_log() -> None:
    """Show ltnode's log, once however often it is asked for: where a run resumes, what it found damaged."""
    logger = logging.getLogger("ltnode")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _Log) for handler in logger.handlers):
        logger.addHandler(_Log())
