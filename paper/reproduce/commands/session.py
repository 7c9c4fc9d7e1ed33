"""Sessions of limited time, as ``ltnode reproduce images --resume`` makes them, and ``ltnode reproduce merge``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from paper.reproduce.commands.claims import write_pages
from paper.reproduce.commands.options import RESUME, Runs
from paper.reproduce.edition.cells import edition_cells
from paper.reproduce.edition.overview import expected_times
from paper.reproduce.edition.packing import Merged, merge
from paper.reproduce.edition.session import Session, Settings
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.cells import Places
from paper.reproduce.images.grid import Cell, load_grid

TOGETHER = 6
"""Concurrent trainings of a session: more gain little on an H200."""


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("merge", epilog=console.example("ltnode reproduce merge session/*.zip"))(reproduce_merge)


def run_session(folder: PaperFolder, cells: Sequence[Cell], places: Places, settings: Settings) -> list[str]:
    """Do what is missing of some cells, those of the edition first; returns one message for each cell that failed."""
    edition = edition_cells(cells)
    ordered = [*edition, *(cell for cell in cells if cell not in edition)]
    with console.resumable(RESUME):
        return Session(places, settings, expected_times(folder), console.say).run(ordered)


def reproduce_merge(
    archives: Annotated[list[Path], typer.Argument(help="Archives that sessions wrote with --pack.")],
    runs: Runs = Path("runs/paper"),
    paper: Annotated[Path, typer.Option(help="Folder with the results and the pages.")] = Path("paper"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace recorded results that differ.")] = False,
    pages: Annotated[bool, typer.Option("--pages/--no-pages", help="Also write the pages again.")] = True,
) -> None:
    """Merge results and unfinished runs of other machines into PAPER/results and RUNS.

    A result that is new, or that completes a recorded one of the same weights, is taken; another one of a recorded cell is not,
    unless --overwrite is given. Merging an archive again changes nothing.
    """
    folder = PaperFolder(paper)
    merged = [merge(path, Places(runs, folder.results), overwrite=overwrite) for path in archives]
    for line in _report(merged):
        console.say(line)
    if pages and any(found.new or found.completed for found in merged):
        write_pages(folder, load_grid(folder.grid), figures=True)


def _report(merged: Sequence[Merged]) -> list[str]:
    kinds = {
        "new results": [name for found in merged for name in found.new],
        "completed results": [name for found in merged for name in found.completed],
        "not merged, since another result is recorded (see --overwrite)": [name for found in merged for name in found.kept],
        "unfinished runs": [name for found in merged for name in found.runs],
    }
    lines = [f"{len(names)} {kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
    return lines or ["nothing new"]
