"""``ltnode reproduce``: the paper's experiments at its own settings, beside what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.experiments import selection, synthetic


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command(
        "synthetic",
        epilog=console.example("ltnode reproduce synthetic", "ltnode reproduce synthetic --models lt-node --iterations 300"),
    )(reproduce_synthetic)
    app.add_typer(
        group,
        name="reproduce",
        help="Repeat the paper's experiments: its settings, its numbers beside ours.",
        epilog=console.example("ltnode reproduce synthetic", "ltnode reproduce motivating"),
    )


def reproduce_synthetic(
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    models: Annotated[str, typer.Option(help=f"Only these, separated by commas: {', '.join(synthetic.VARIANTS)}.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("paper/results"),
    runs: Annotated[Path, typer.Option(help="Folder of the run folders, from which an interrupted run continues.")] = Path(
        "runs"
    ),
    iterations: Annotated[int, typer.Option(help="Training steps; the paper's are 3000.", min=1)] = synthetic.ITERATIONS,
    select: Annotated[bool, typer.Option("--selection/--no-selection", help="Also train NODEs at five end-times.")] = True,
) -> None:
    """The 1-D experiment: entropy in the gap, posteriors, fit, and whether q(T) selects the end-time.

    An interrupted command continues where it stopped when it is run again, and ends with the same numbers, bit for bit.
    """
    variants = synthetic.chosen(console.words(models))
    with console.resumable("Run the same command again: it continues from the last checkpoint."):
        for seed in console.numbers(seeds):
            for variant in variants:
                console.say(f"{variant.title}, seed {seed}")
                synthetic.reproduce(variant, seed, out, runs, iterations)
            if select:
                for time in selection.TIMES:
                    console.say(f"NODE at T = {time:g}, seed {seed}")
                    selection.reproduce_time(time, seed, out, runs, iterations)
