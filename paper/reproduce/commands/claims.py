"""``ltnode reproduce claims``: judge every claim of the paper by the recorded results, and write the pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from paper.reproduce.claims.all_claims import all_claims
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import Cell, load_grid
from paper.reproduce.images.results import read_results
from paper.reproduce.pages.writing import write_paper_pages, write_results, write_zoo_cards


def register(group: typer.Typer) -> None:
    """Add the command."""
    examples = ("ltnode reproduce claims", "ltnode reproduce claims --figures --no-pages")
    group.command("claims", epilog=console.example(*examples))(reproduce_claims)


def reproduce_claims(
    paper: Annotated[Path, typer.Option(help="Folder with the results and the published values.")] = Path("paper"),
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Also draw PAPER/figures.")] = False,
    pages: Annotated[
        bool,
        typer.Option(
            "--pages/--no-pages", help="Also update the results in README.md and docs and the cards in zoo, all next to PAPER."
        ),
    ] = True,
) -> None:
    """Compare every number and statement of the paper with our results, and give each a verdict.

    Writes PAPER/README.md (the claims with their verdicts) and PAPER/tables.md. Unless --no-pages is given, it also rewrites the
    generated parts of README.md and docs, and the README.md files of the zoo. Only recorded results are read: nothing is trained.
    """
    folder = PaperFolder(paper)
    write_pages(folder, load_grid(folder.grid), figures=figures, repository=pages)


def write_pages(folder: PaperFolder, grid: Sequence[Cell], *, figures: bool, repository: bool = True) -> None:
    """Judge the claims and write the pages of ``paper``, and those of the ``repository`` (README, docs and zoo) if asked for."""
    published, results = folder.published(), read_results(folder.results)
    judged = all_claims(results, folder.results, published)
    made = write_paper_pages(folder, results, judged, figures=figures)
    if repository:
        made += write_results(folder, judged) + write_zoo_cards(folder, grid)
    for path in made:
        console.say(f"made {path}")
