"""Sessions of limited time: ``ltnode reproduce all``, ``ltnode reproduce images --resume``, and ``ltnode reproduce merge``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.errors import ConfigError
from paper.reproduce.claims.all_claims import image_claims
from paper.reproduce.claims.numbers import ImageNumbers
from paper.reproduce.commands.claims import write_pages
from paper.reproduce.commands.options import RESUME, Runs
from paper.reproduce.edition.cells import edition_cells
from paper.reproduce.edition.order import ordered
from paper.reproduce.edition.overview import expected_times, summary
from paper.reproduce.edition.packing import Merged, merge, pack_results
from paper.reproduce.edition.parts import Part, edition_parts
from paper.reproduce.edition.retraining import agrees, choose, compare, record
from paper.reproduce.edition.session import Session, Settings
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.cells import Places, State, paper_protocols, state
from paper.reproduce.images.grid import Cell, load_grid
from paper.reproduce.images.results import read_results

DRAWS = 5
"""Random draws of T over which spreads are reported."""
FAILED = 1
Minutes = Annotated[float | None, typer.Option(help="End after this time.", min=0)]
Together = Annotated[int | None, typer.Option(help="Most concurrent trainings; by default 6 on a GPU and 1 on a CPU.", min=1)]
Evaluators = Annotated[
    int | None,
    typer.Option(help="Processes that evaluate while others train; by default 4 on a GPU, and 0 (in turn) on a CPU.", min=0),
]
Pack = Annotated[Path | None, typer.Option(help="Folder for archives of what was done, for `ltnode reproduce merge`.")]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    examples = ("ltnode reproduce all --resume", "ltnode reproduce all --resume --minutes 9 --pack session")
    group.command("all", epilog=console.example(*examples))(reproduce_all)
    group.command("retrain", epilog=console.example("ltnode reproduce retrain --cells 2"))(reproduce_retrain)
    group.command("merge", epilog=console.example("ltnode reproduce merge session/*.zip"))(reproduce_merge)


def run_session(
    folder: PaperFolder, cells: Sequence[Cell], places: Places, settings: Settings, parts: Sequence[Part] = ()
) -> list[str]:
    """Do what is missing of some cells, those first that complete the most claims, and of parts; returns messages of failures."""
    results, expected = read_results(folder.results), expected_times(folder)
    missing = [cell for cell in cells if state(cell, places, paper_protocols())[0] is not State.DONE]
    in_order = ordered(cells, missing, image_claims(ImageNumbers(results), folder.published()), expected)
    with console.resumable(RESUME):
        return Session(places, settings, expected, console.say).run(in_order, parts)


def end(failed: Sequence[str]) -> None:
    """Show the messages of failures, and end the command with status 1 if there are any."""
    for message in failed:
        console.error(message)
    if failed:
        raise typer.Exit(FAILED)


def reproduce_all(
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is recorded, and do only what is missing.")] = False,
    minutes: Minutes = None,
    pack: Pack = None,
    show: Annotated[bool, typer.Option("--list", help="Only show how much is done.")] = False,
    runs: Runs = Path("runs/paper"),
    out: Annotated[Path | None, typer.Option(help="Folder of the results; by default PAPER/results.")] = None,
    paper: Annotated[Path, typer.Option(help="Folder with the grid, the published values and the pages.")] = Path("paper"),
    device: Annotated[str | None, typer.Option(help="Device of the image experiments; by default the best one.")] = None,
    together: Together = None,
    evaluators: Evaluators = None,
) -> None:
    """Make a whole edition: all image experiments, and the 1-D and motivating experiments on spare cores at the same time.

    Six models on four sets with five seeds, the rows of variants and of the default preset, and five seeds of everything else.
    """
    folder = PaperFolder(paper)
    grid, places = load_grid(folder.grid), Places(runs, out or folder.results)
    parts = edition_parts(folder.results)
    done = [name for name in _result_files(grid, parts, places) if name.exists()]
    if show:
        _show_progress(folder, grid, parts, places)
        return
    if done and not resume:
        raise ConfigError(f"{places.out} already holds {len(done)} of these results: add --resume, or choose another --out")
    settings = Settings(minutes, together, evaluators, {"draws": DRAWS, "limit": None}, device, pack)
    failed = run_session(folder, grid, places, settings, parts)
    if pack is None and places.out.resolve() == folder.results.resolve():
        write_pages(folder, grid, figures=True)
    end(failed)


def _result_files(grid: Sequence[Cell], parts: Sequence[Part], places: Places) -> list[Path]:
    return [places.result(cell) for cell in grid] + [part.result(places.out) for part in parts]


def _show_progress(folder: PaperFolder, grid: Sequence[Cell], parts: Sequence[Part], places: Places) -> None:
    for line in summary(grid, places, paper_protocols(), expected_times(folder)):
        console.say(line)
    recorded = sum(part.result(places.out).exists() for part in parts)
    console.say(f"{recorded} of {len(parts)} done: 1-D and motivating experiments, which run on the CPU.")


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


def reproduce_retrain(
    cells: Annotated[int, typer.Option(help="Number of cells.", min=1)] = 2,
    choice: Annotated[int | None, typer.Option(help="Seed of the choice; by default another one every time.")] = None,
    work: Annotated[Path, typer.Option(help="Folder of the new run folders and results.")] = Path("runs/retrained"),
    paper: Annotated[Path, typer.Option(help="Folder with the grid and the results.")] = Path("paper"),
    device: Annotated[str | None, typer.Option(help="Device; by default the best one.")] = None,
    pack: Pack = None,
) -> None:
    """Train cells that are chosen at random again, from scratch, and compare them with the record.

    The test error must be within two standard deviations of the recorded mean over seeds; otherwise the status is 1. What came
    out is written to PAPER/results.
    """
    folder = PaperFolder(paper)
    results = read_results(folder.results)
    chosen_by = secrets.randbelow(1_000_000) if choice is None else choice
    chosen = choose(edition_cells(load_grid(folder.grid)), results, cells, chosen_by)
    places = Places(work / f"runs-{chosen_by}", work / f"results-{chosen_by}")
    failed = run_session(folder, chosen, places, Settings(options={"draws": 0, "limit": None}, device=device))
    written = []
    for cell in chosen:
        again = places.recorded(cell)
        if again is None:
            continue
        found = compare(again, results)
        written.append(record(folder.results, cell, again, found, chosen_by))
        rows = [[one.name, one.recorded.text(4), f"{one.again:.4f}", f"{one.deviations:.1f}"] for one in found]
        console.table(cell.title, ("number", "recorded", "again", "deviations"), rows)
        if not agrees(found):
            failed.append(f"{cell.title}: the test error is not within two standard deviations of the record")
    if pack is not None:
        pack_results(pack, written)
    end(failed)


def _report(merged: Sequence[Merged]) -> list[str]:
    kinds = {
        "new results": [name for found in merged for name in found.new],
        "completed results": [name for found in merged for name in found.completed],
        "not merged, since another result is recorded (see --overwrite)": [name for found in merged for name in found.kept],
        "unfinished runs": [name for found in merged for name in found.runs],
    }
    lines = [f"{len(names)} {kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
    return lines or ["nothing new"]
