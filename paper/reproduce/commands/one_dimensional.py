"""``ltnode reproduce synthetic``: the paper's experiment on one-dimensional data with a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.report.markdown import markdown_table
from ltnode.report.published import Published
from paper.reproduce.commands.options import RESUME, Out, Runs, Seeds
from paper.reproduce.one_dimensional import figures, findings, selection, synthetic


def register(group: typer.Typer) -> None:
    """Add the command."""
    examples = ("ltnode reproduce synthetic", "ltnode reproduce synthetic --models lt-node,alt-node --iterations 300")
    group.command("synthetic", epilog=console.example(*examples))(reproduce_synthetic)


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
    with console.resumable(RESUME):
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
        for figure in figures.draw(out, results, selected, published):
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
