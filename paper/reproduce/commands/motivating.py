"""``ltnode reproduce motivating``: the tasks that motivate input-dependent end-times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.report.markdown import markdown_table
from paper.reproduce.commands.options import RESUME, Out, Runs, Seeds
from paper.reproduce.motivating import figure, tasks


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("motivating", epilog=console.example("ltnode reproduce motivating --seeds 0-2"))(reproduce_motivating)


def reproduce_motivating(
    seeds: Seeds = "0,1,2",
    out: Out = Path("paper/results"),
    runs: Runs = Path("runs"),
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = tasks.STEPS,
) -> None:
    """Concentric annuli and reflection: what one common end-time cannot do, and end-times that depend on the input can."""
    trained = []
    with console.resumable(RESUME):
        for seed in console.numbers(seeds):
            for task in tasks.TASKS:
                for model, title in tasks.MODELS.items():
                    console.say(f"{task}: {title}, seed {seed}")
                    trained.append(tasks.reproduce(task, model, seed, out, runs, steps))
    results = [entry.result for entry in trained]
    rows = [line.cells() for line in tasks.summary(results)]
    console.table("", tasks.HEADER, rows, words=(0, 1, 3))
    for good, sentence in tasks.verdicts(results):
        console.say(f"{'✓' if good else '✗'} {sentence}", style="green" if good else "bold red")
    first = [entry for entry in trained if entry.seed == trained[0].seed]
    console.say(f"figure: {figure.draw(out, first).png}")
    table = out / f"motivating{'' if steps == tasks.STEPS else f'-{steps}it'}.md"
    table.write_text(markdown_table(tasks.HEADER, rows), encoding="utf-8")
    console.say(f"table: {table}")
