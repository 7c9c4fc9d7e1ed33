"""``ltnode reproduce``: the paper's experiments at its own settings, beside what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.errors import ConfigError, InputError
from ltnode.evaluation import PROTOCOLS
from ltnode.report.markdown import markdown_table
from ltnode.report.published import Published
from ltnode.training import TrainingError
from paper.reproduce import findings, images, motivating, motivating_figure, selection, synthetic, synthetic_figures
from paper.reproduce.claims import zoo_note
from paper.reproduce.images_grid import STANDARD, Cell, load_grid, select
from paper.reproduce.images_pages import PaperFolder, rebuild
from paper.reproduce.images_runs import import_run
from paper.reproduce.images_zoo import add_runs, read_zoo, write_cards

Seeds = Annotated[str, typer.Option(help="Seeds: numbers and ranges, separated by commas, such as 0,1 or 0-4.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders, from which an interrupted run continues.")]
FAILED = 1
_RESUME = "Run the same command again: it continues from the last checkpoint."


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    examples = ("ltnode reproduce synthetic", "ltnode reproduce synthetic --models lt-node,alt-node --iterations 300")
    group.command("synthetic", epilog=console.example(*examples))(reproduce_synthetic)
    group.command("motivating", epilog=console.example("ltnode reproduce motivating --seeds 0-2"))(reproduce_motivating)
    cells = (
        "ltnode reproduce images --list",
        "ltnode reproduce images --data cifar10 --models lt-node,uni-node --seeds 0-2",
        "ltnode reproduce images --from-run zoo/lt-node-cifar10 --protocols clean,ood",
    )
    group.command("images", epilog=console.example(*cells))(reproduce_images)
    group.command("claims", epilog=console.example("ltnode reproduce claims"))(reproduce_claims)
    app.add_typer(
        group,
        name="reproduce",
        help="Repeat the paper's experiments: its settings, its numbers beside ours.",
        epilog=console.example("ltnode reproduce synthetic", "ltnode reproduce motivating"),
    )


def reproduce_synthetic(
    seeds: Seeds = "0",
    models: Annotated[str, typer.Option(help=f"Only these, separated by commas: {', '.join(synthetic.VARIANTS)}.")] = "",
    out: Out = Path("paper/results"),
    runs: Runs = Path("runs"),
    iterations: Annotated[int, typer.Option(help="Training steps; the paper's are 3000.", min=1)] = synthetic.ITERATIONS,
    select: Annotated[bool, typer.Option("--selection/--no-selection", help="Also train NODEs at five end-times.")] = True,
    train: Annotated[
        bool, typer.Option("--train/--report-only", help="Train what is missing, or only show what is there.")
    ] = True,
) -> None:
    """The 1-D experiment: entropy in the gap, posteriors, fit, and whether q(T) selects the end-time.

    An interrupted command continues where it stopped when it is run again, and ends with the same numbers, bit for bit.
    """
    wanted, variants = console.numbers(seeds), synthetic.chosen(console.words(models))
    published = Published.read().synthetic
    with console.resumable(_RESUME):
        for seed in wanted if train else ():
            for variant in variants:
                console.say(f"{variant.title}, seed {seed}")
                synthetic.reproduce(variant, seed, out, runs, iterations)
            for time in selection.TIMES if select else ():
                console.say(f"NODE at T = {time:g}, seed {seed}")
                selection.reproduce_time(time, seed, out, runs, iterations)
    stems = [synthetic.result_name(name, seed, iterations) for seed in wanted for name in synthetic.VARIANTS]
    times = [selection.selection_name(time, seed, iterations) for seed in wanted for time in selection.TIMES]
    (results, missing), (selected, unselected) = synthetic.read_results(out, stems), synthetic.read_results(out, times)
    lines = findings.findings(results, selected, published)
    if lines:
        rows = [line.cells() for line in lines]
        console.table("", findings.HEADER, rows, words=findings.WORDS, lines=True)
        for figure in synthetic_figures.draw(out, results, selected, published):
            console.say(f"figure: {figure.png}")
        table = out / f"synthetic{'' if iterations == synthetic.ITERATIONS else f'-{iterations}it'}.md"
        table.write_text(markdown_table(findings.HEADER, rows), encoding="utf-8")
        console.say(f"table: {table}")
    if iterations != synthetic.ITERATIONS:
        console.say(
            f"{iterations} iterations are not the paper's {synthetic.ITERATIONS}: these verdicts are no verdicts on it.",
            style="yellow",
        )
    if not published:
        console.say("paper/published.toml was not found: the column of the paper is empty.", style="yellow")
    if missing or unselected:
        console.say(f"missing, run the command without --models to get all: {', '.join(missing + unselected)}", style="yellow")


def reproduce_motivating(
    seeds: Seeds = "0,1,2",
    out: Out = Path("paper/results"),
    runs: Runs = Path("runs"),
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = motivating.STEPS,
) -> None:
    """Concentric annuli and reflection: what one common end-time cannot do, and end-times that depend on the input can."""
    trained = []
    with console.resumable(_RESUME):
        for seed in console.numbers(seeds):
            for task in motivating.TASKS:
                for model, title in motivating.MODELS.items():
                    console.say(f"{task}: {title}, seed {seed}")
                    trained.append(motivating.reproduce(task, model, seed, out, runs, steps))
    results = [entry.result for entry in trained]
    rows = [line.cells() for line in motivating.summary(results)]
    console.table("", motivating.HEADER, rows, words=(0, 1, 3))
    for good, sentence in motivating.verdicts(results):
        console.say(f"{'✓' if good else '✗'} {sentence}", style="green" if good else "bold red")
    first = [entry for entry in trained if entry.seed == trained[0].seed]
    console.say(f"figure: {motivating_figure.draw(out, first).png}")
    table = out / f"motivating{'' if steps == motivating.STEPS else f'-{steps}it'}.md"
    table.write_text(markdown_table(motivating.HEADER, rows), encoding="utf-8")
    console.say(f"table: {table}")


def reproduce_images(
    data: Annotated[str, typer.Option(help="Only these data sets, separated by commas.")] = "",
    models: Annotated[str, typer.Option(help="Only these models, separated by commas.")] = "",
    presets: Annotated[str, typer.Option(help="Only these presets: paper, default.")] = "",
    variants: Annotated[str, typer.Option(help=f"Only these variants; {STANDARD!r} is the preset as it is.")] = "",
    seeds: Annotated[str, typer.Option(help="Other seeds than the grid's: numbers and ranges, such as 0,1 or 0-4.")] = "",
    runs: Runs = Path("runs/paper"),
    out: Annotated[Path | None, typer.Option(help="Folder of the results; by default PAPER/results.")] = None,
    paper: Annotated[Path, typer.Option(help="Folder with the grid, the published values and the pages.")] = Path("paper"),
    from_run: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Take a finished run folder as that of its cell; may be repeated.")
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate/--no-evaluate", help="Also evaluate, or only train.")] = True,
    protocols: Annotated[str, typer.Option(help=f"Of {', '.join(PROTOCOLS)}; by default the paper's.")] = "",
    draws: Annotated[int, typer.Option(help="Random draws of T over which spreads are reported; 0 skips them.", min=0)] = 5,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default auto.")] = None,
    together: Annotated[
        int, typer.Option(help="Train up to so many cells side by side; on a GPU they fill its gaps.", min=1)
    ] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Evaluate again what is recorded.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A quick trial with another training setting; its results never count."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Of a trial: use only the first so many test images.", min=1)] = None,
    zoo: Annotated[bool, typer.Option("--zoo", help="Add finished runs of seed 0 to the zoo beside PAPER.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Only show the grid: what is done, what is missing.")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Only make tables, figures and pages again.")] = False,
) -> None:
    """The image experiments of the grid: train what is missing, continue what was interrupted, evaluate, compare.

    Runs from a clone of the repository, whose folder paper holds the grid and the published values. What is recorded in
    paper/results is not done again; tables, figures and paper/README.md are made from there.
    """
    folder = PaperFolder(paper)
    grid = load_grid(folder.grid)
    wanted = console.numbers(seeds) if seeds else None
    cells = select(
        grid, console.words(data), console.words(models), console.words(presets), console.words(variants), wanted, settings or ()
    )
    places = images.Places(runs, out or folder.results)
    chosen = tuple(console.words(protocols)) or None
    if limit is not None and not settings:
        raise InputError("--limit is for quick trials, with --set: results that count use whole test sets")
    evaluation = images.Evaluation(chosen, {"draws": draws, "limit": limit}, device, overwrite) if evaluate else None
    if show:
        _show_grid(cells, places, chosen or images.paper_protocols())
        return
    if from_run:
        cells = [import_run(source, grid, runs) for source in from_run]
    failed = [] if tables_only else _run_cells(cells, places, evaluation, device, together)
    if zoo:
        for added in add_runs(folder.zoo, cells, places):
            console.say(f"added {added}")
    if settings:
        console.say("a trial: its results do not count, and no table was made.", style="yellow")
    elif places.out.resolve() != folder.results.resolve():
        console.say(f"no table was made: tables and pages are those of {folder.results}.", style="yellow")
    else:
        _rebuild(folder, grid)
    for message in failed:
        console.error(message)
    if failed:
        raise typer.Exit(FAILED)


def reproduce_claims(
    paper: Annotated[Path, typer.Option(help="Folder with the results and the published values.")] = Path("paper"),
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Also draw the figures.")] = False,
) -> None:
    """Every number and statement of the paper beside our results, with a verdict: makes paper/README.md.

    Also makes the tables, the results in README.md, and the cards of the zoo.
    """
    folder = PaperFolder(paper)
    _rebuild(folder, load_grid(folder.grid), figures)


def _run_cells(
    cells: Sequence[Cell], places: images.Places, evaluation: images.Evaluation | None, device: str | None, together: int
) -> list[str]:
    """Bring cells to their end; a training that fails does not stop the others. Returns what failed, in words."""
    wanted = images.paper_protocols() if evaluation is None or evaluation.protocols is None else evaluation.protocols
    for name in wanted:
        if name not in PROTOCOLS:
            raise InputError(f"unknown protocol {name!r}; there are {', '.join(PROTOCOLS)}")
    failed = []
    with console.resumable(_RESUME):
        if together > 1:
            console.say(f"training what is missing, up to {together} runs side by side")
            with suppress(TrainingError):  # said below, for the cell that it is of
                images.train_together(cells, places, together, device)
        for position, cell in enumerate(cells, 1):
            before, _ = images.state(cell, places, wanted)
            word = "again" if evaluation is not None and evaluation.overwrite else before.value
            console.say(f"{position}/{len(cells)} {cell.title}: {word}")
            try:
                images.reproduce(cell, places, evaluation, device)
            except TrainingError as error:
                failed.append(f"{cell.title}: {error}")
    return failed


def _show_grid(cells: Sequence[Cell], places: images.Places, protocols: Sequence[str]) -> None:
    rows = []
    for cell in cells:
        found, done = images.state(cell, places, protocols)
        config = cell.config
        rows.append([cell.title, str(config.epochs), config.precision, found.value, ", ".join(done), cell.name])
    console.table("", ("Cell", "Epochs", "Precision", "State", "Evaluated", "Run folder"), rows, words=(0, 2, 3, 4, 5))
    done_count = sum(row[3] == images.State.DONE.value for row in rows)
    console.say(f"{done_count} of {len(rows)} done. Run them with the same command without --list.")


def _rebuild(folder: PaperFolder, grid: Sequence[Cell], figures: bool = True) -> None:
    if not (folder.path / "published.toml").exists():
        raise ConfigError(f"{folder.path} holds no published.toml: the reproduction runs from a clone of the repository")
    made = rebuild(folder, figures)
    if folder.zoo.is_dir():
        entries = read_zoo(folder.zoo, grid, folder.results)
        made += write_cards(folder.zoo, entries, folder.published(), zoo_note(folder.path / "remarks.toml"))
    for path in made:
        console.say(f"made {path}")
