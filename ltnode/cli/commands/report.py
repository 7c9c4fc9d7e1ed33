"""``ltnode report``: show evaluated runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.hub import locate
from ltnode.report import build_report

EXAMPLES = ("ltnode report runs/x --out report", "ltnode report runs/* --out report")
_PUBLISHED = (Path("paper/published.toml"), Path(__file__).parents[3] / "paper" / "published.toml")
"""Where the paper's values are in a clone; an installed package does not have them."""


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Evaluated run folders, names of models, or files with their results.", metavar="RUNS...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the page, the figures and the tables.")] = Path("report"),
    published: Annotated[
        Path | None, typer.Option(help="TOML file with the values of the paper; by default paper/published.toml if it exists.")
    ] = None,
) -> None:
    """Show evaluated runs on one page, compared with the paper.

    The page has every figure and table of the paper. Runs that differ only in their seed are shown as mean and standard
    deviation.
    """
    found = [file for file in _PUBLISHED if file.exists()] if published is None else [published]
    page = build_report([locate(run) for run in runs], out, published=found[0] if found else None)
    console.say(f"Figures (PDF, SVG) and tables (Markdown, LaTeX, HTML) are in {out}.")
    console.say(f"Open the page in a browser: {page.resolve().as_uri()}")
