"""Options and messages that several subcommands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console

Seeds = Annotated[str, typer.Option(help="Seeds: numbers and ranges, separated by commas, such as 0,1 or 0-4.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders, from which an interrupted run continues.")]
RESUME = "Run the same command again to continue from the last checkpoint."


def report_failures(messages: Sequence[str]) -> None:
    """Say which parts failed elsewhere; the command tries them again here, and continues from their checkpoints."""
    for message in messages:
        console.warn(message)
