"""Options and messages that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seeds = Annotated[str, typer.Option(help="Seeds: numbers and ranges, separated by commas, such as 0,1 or 0-4.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders, from which an interrupted run continues.")]
RESUME = "Run the same command again to continue from the last checkpoint."
