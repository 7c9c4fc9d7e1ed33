"""``ltnode reproduce images``: train, evaluate and record the cells of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.cli.engine_options import Address, OptionalEngine
from ltnode.errors import InputError
from ltnode.evaluation import PROTOCOLS
from ltnode.training import TrainingError
from paper.reproduce.commands.claims import write_pages
from paper.reproduce.commands.options import RESUME, Runs, report_failures
from paper.reproduce.commands.session import DRAWS, Evaluators, Minutes, Pack, end, run_session
from paper.reproduce.edition import overview
from paper.reproduce.edition.overview import expected_times
from paper.reproduce.edition.session import Settings
from paper.reproduce.elsewhere import image_arguments, run_parts
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images import cells as experiment
from paper.reproduce.images.evaluation import Evaluation
from paper.reproduce.images.grid import STANDARD, Cell, load_grid, select
from paper.reproduce.images.run_folders import import_run
from paper.reproduce.images.zoo import add_runs


def register(group: typer.Typer) -> None:
    """Add the command."""
    examples = (
        "ltnode reproduce images --list",
        "ltnode reproduce images --data cifar10 --models lt-node,uni-node --seeds 0-2",
        "ltnode reproduce images --resume --minutes 9 --pack session",
        "ltnode reproduce images --from-run zoo/lt-node-cifar10 --protocols clean,ood",
    )
    group.command("images", epilog=console.example(*examples))(reproduce_images)


def reproduce_images(
    data: Annotated[str, typer.Option(help="Only these data sets, separated by commas.")] = "",
    models: Annotated[str, typer.Option(help="Only these models, separated by commas.")] = "",
    presets: Annotated[str, typer.Option(help="Only these presets: paper, default.")] = "",
    variants: Annotated[str, typer.Option(help=f"Only these variants; {STANDARD!r} is the unchanged preset.")] = "",
    seeds: Annotated[str, typer.Option(help="Other seeds than the grid's: numbers and ranges, such as 0,1 or 0-4.")] = "",
    runs: Runs = Path("runs/paper"),
    out: Annotated[Path | None, typer.Option(help="Folder of the results; by default PAPER/results.")] = None,
    paper: Annotated[Path, typer.Option(help="Folder with the grid, the published values and the pages.")] = Path("paper"),
    from_run: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Use a finished run folder as the run of its cell; may be repeated.")
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate/--no-evaluate", help="Also evaluate, or only train.")] = True,
    protocols: Annotated[str, typer.Option(help=f"Some of {', '.join(PROTOCOLS)}; by default the paper's.")] = "",
    draws: Annotated[int, typer.Option(help="Random draws of T over which spreads are reported; 0 skips them.", min=0)] = DRAWS,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default auto.")] = None,
    together: Annotated[
        int | None,
        typer.Option(help="Most concurrent trainings; by default 1, and with --resume 6 on a GPU.", min=1),
    ] = None,
    evaluators: Evaluators = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="A session (see --minutes, --evaluators, --pack): several trainings and evaluations at a time.",
        ),
    ] = False,
    minutes: Minutes = None,
    pack: Pack = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Evaluate again even if a result is recorded.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A quick trial with another training setting; its results never count."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="In a trial: use only this many test images.", min=1)] = None,
    zoo: Annotated[bool, typer.Option("--zoo", help="Add finished runs with seed 0 to the zoo next to PAPER.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Only show the grid: what is done and what is missing.")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Only write tables, figures and pages again.")] = False,
    engine: OptionalEngine = None,
    address: Address = None,
) -> None:
    """Run the image experiments of the grid: train what is missing, continue interrupted runs, evaluate, compare.

    Runs from a clone of the repository, whose folder paper holds the grid and the published values. Cells that are recorded in
    paper/results are not run again; all pages of `ltnode reproduce claims --figures` are written from the records.
    """
    folder = PaperFolder(paper)
    grid = load_grid(folder.grid)
    chosen_seeds = console.numbers(seeds) if seeds else None
    data_names, model_names, preset_names, variant_names = map(console.words, (data, models, presets, variants))
    cells = select(grid, data_names, model_names, preset_names, variant_names, chosen_seeds, settings or ())
    places = experiment.Places(runs, out or folder.results)
    chosen = _protocols(protocols)
    if limit is not None and not settings:
        raise InputError("--limit is only for quick trials with --set: results that count use the whole test set")
    if show:
        _show_grid(folder, cells, places, chosen or experiment.paper_protocols())
        return
    if from_run:
        cells = [import_run(source, grid, runs) for source in from_run]
    options = {"draws": draws, "limit": limit}
    if resume:
        failed = run_session(folder, cells, places, Settings(minutes, together, evaluators, options, device, pack))
        if pack is None:
            _write_pages(folder, grid, places.out, is_trial=bool(settings))
        end(failed)
        return
    evaluation = Evaluation(chosen, options, device, overwrite) if evaluate else None
    if engine and not tables_only:
        parts = [image_arguments(cell, places, evaluation, device) for cell in cells]
        report_failures(run_parts(engine, address, "image_cell", parts, device))
    failed = [] if tables_only else _run_cells(cells, places, evaluation, device, together or 1)
    if zoo:
        for added in add_runs(folder.zoo, cells, places):
            console.say(f"added {added}")
    _write_pages(folder, grid, places.out, is_trial=bool(settings))
    end(failed)


def _protocols(text: str) -> tuple[str, ...] | None:
    names = tuple(console.words(text))
    for name in names:
        if name not in PROTOCOLS:
            raise InputError(f"unknown protocol {name!r}; there are {', '.join(PROTOCOLS)}")
    return names or None


def _run_cells(
    cells: Sequence[Cell], places: experiment.Places, evaluation: Evaluation | None, device: str | None, together: int
) -> list[str]:
    """Train and evaluate all cells; a failed training does not stop the others. Returns one message per failure."""
    protocols = experiment.paper_protocols() if evaluation is None or evaluation.protocols is None else evaluation.protocols
    failed = []
    with console.resumable(RESUME):
        if together > 1:
            console.say(f"training what is missing, up to {together} runs concurrently")
            with suppress(TrainingError):  # reported below, for the cell that failed
                experiment.train_together(cells, places, together, device)
        for position, cell in enumerate(cells, 1):
            before, _ = experiment.state(cell, places, protocols)
            word = "again" if evaluation is not None and evaluation.overwrite else before.value
            console.say(f"{position}/{len(cells)} {cell.title}: {word}")
            try:
                experiment.reproduce(cell, places, evaluation, device)
            except TrainingError as error:
                failed.append(f"{cell.title}: {error}")
    return failed


def _show_grid(folder: PaperFolder, cells: Sequence[Cell], places: experiment.Places, protocols: Sequence[str]) -> None:
    expected = expected_times(folder)
    console.table("", overview.HEADER, overview.state_rows(cells, places, protocols, expected), words=overview.WORDS)
    for line in overview.summary(cells, places, protocols, expected):
        console.say(line)
    console.say("Run the same command without --list to do the rest.")


def _write_pages(folder: PaperFolder, grid: Sequence[Cell], out: Path, is_trial: bool) -> None:
    """Write the pages, unless the results just made are not those of the repository."""
    if is_trial:
        console.say("This was a trial: its results do not count, and no table was made.", style="yellow")
    elif out.resolve() != folder.results.resolve():
        console.say(f"no table was made: tables and pages show the results in {folder.results}.", style="yellow")
    else:
        write_pages(folder, grid, figures=True)
