"""``ltnode reproduce``: the paper's experiments at its own settings, beside what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.experiments import findings, motivating, motivating_figure, selection, synthetic, synthetic_figures
from ltnode.report.markdown import markdown_table
from ltnode.report.published import Published

Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders, from which an interrupted run continues.")]
_RESUME = "Run the same command again: it continues from the last checkpoint."


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    examples = ("ltnode reproduce synthetic", "ltnode reproduce synthetic --models lt-node,alt-node --iterations 300")
    group.command("synthetic", epilog=console.example(*examples))(reproduce_synthetic)
    group.command("motivating", epilog=console.example("ltnode reproduce motivating --seeds 0,1,2"))(reproduce_motivating)
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
