"""``ltnode report``: evaluated runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.report import build_report

_PUBLISHED = (Path("paper/published.toml"), Path(__file__).parents[3] / "paper" / "published.toml")
"""Where the paper's values are in a clone; an installed package does not have them."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", epilog=console.example("ltnode report runs/x --out report", "ltnode report runs/* --out report"))(
        report
    )


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders that were evaluated, or files of results.", metavar="RUNS...")],
    out: Annotated[Path, typer.Option(help="Folder of the page, the figures and the tables.")] = Path("report"),
    published: Annotated[
        Path | None, typer.Option(help="TOML file of the paper's values; by default paper/published.toml where there is one.")
    ] = None,
) -> None:
    """Make one page of evaluated runs: every figure and table of the paper, with its published values beside ours.

    Runs that differ in their seed alone are shown as mean and standard deviation.
    """
    found = [file for file in _PUBLISHED if file.exists()] if published is None else [published]
    page = build_report(runs, out, published=found[0] if found else None)
    console.say(f"Figures (PDF, SVG) and tables (Markdown, LaTeX, HTML) are in {out}.")
    console.say(f"Open the page in a browser: {console.page_address(page)}")
