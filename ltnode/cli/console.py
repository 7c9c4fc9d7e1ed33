"""The output of the command line, written with rich: results to standard output, errors and the log to standard error."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ltnode.errors import InputError

INTERRUPTED = 130
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Exit status after Ctrl-C."""
_WIDTH = 160
"""Width of output to a file or a pipe, for which rich would assume 80 columns and cut tables."""


def out() -> Console:
    """Console for standard output."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def err() -> Console:
    """Console for standard error."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH)


def error(message: str) -> None:
    """Write an error as one red line to standard error."""
    err().print(Text.assemble(("error: ", "bold red"), (printable(" ".join(message.split())), "red")), soft_wrap=True)


def printable(text: str) -> str:
    """Replace what a terminal would obey: names in files (of classes, for example) may hold escape sequences.

    These are the control characters except tab and line break, and the marks that change the direction of text.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def warn(message: str) -> None:
    """Write a warning as one yellow line to standard error."""
    err().print(Text(f"warning: {' '.join(message.split())}", style="yellow"), soft_wrap=True)


def say(message: str, style: str = "") -> None:
    """Write a line of text to standard output."""
    out().print(Text(printable(message), style=style), soft_wrap=True)


def example(*commands: str) -> str:
    """Format example commands for the end of a help page."""
    title = "Example" if len(commands) == 1 else "Examples"
    return f"{title}:\n\n" + "\n\n".join(f"[bold]{escape(command)}[/bold]" for command in commands)


def table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), lines: bool = False
) -> None:
    """Write a table to standard output.

    Args:
        title: Title above the table; empty for none.
        header: Names of the columns; a line break in a name saves width.
        rows: Rows with one cell per column.
        words: Indices of the text columns, which are left-aligned; the other columns hold numbers and are right-aligned.
        lines: Whether to draw lines between the rows, for cells with several lines.
    """
    grid = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    grid.pad_edge, grid.show_lines = False, lines
    for column, name in enumerate(header):
        if column in words:
            # On a narrow terminal, texts wrap between words, and numbers are never broken.
            longest = max((len(word) for row in rows for word in row[column].split()), default=0)
            grid.add_column(Text(name), min_width=longest)
        else:
            grid.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    out().print(grid)


def facts(values: Mapping[str, str]) -> None:
    """Write names and values to standard output, one pair per line."""
    grid = Table(show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        grid.add_row(Text(printable(name), style="dim"), Text(printable(value)))
    out().print(grid)


def words(text: str) -> list[str]:
    """Split a comma-separated list into its words."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """Parse a comma-separated list of integers >= 0 and increasing ranges such as ``0-4``; duplicates are removed."""
    values: dict[int, None] = {}
    for word in words(text):
        low, dash, high = word.partition("-")
        high = high if dash else low
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
            values = {}
            break
        values |= dict.fromkeys(range(int(low), int(high) + 1))
    if not values:
        raise InputError(f"expected whole numbers separated by commas, or a range of them: 0, 0,1,2 or 0-4, not {text!r}")
    return list(values)


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """On Ctrl-C, end the command with status 130 and the sentence ``advice``, which says how to continue."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        error(f"stopped. {advice}")
        raise typer.Exit(INTERRUPTED) from stopped


class _LogHandler(logging.Handler):
    """Shows the log of ltnode on standard error, for example where a run resumes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        err().print(Text(printable(record.getMessage()), style=style), soft_wrap=True)


def show_log() -> None:
    """Show the log of ltnode; calling this again has no effect."""
    logger = logging.getLogger("ltnode")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _LogHandler) for handler in logger.handlers):
        logger.addHandler(_LogHandler())
