"""``ltnode reproduce motivating``: the tasks that motivate input-dependent end-times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.cli.engine_options import Address, OptionalEngine
from ltnode.report.table import markdown_table
from paper.reproduce.claims.motivating import motivating_claims
from paper.reproduce.claims.verdict import Outcome
from paper.reproduce.commands.options import RESUME, Out, Runs, Seeds, report_failures
from paper.reproduce.elsewhere import run_parts
from paper.reproduce.motivating import figure, table, tasks
from paper.reproduce.pages.claims import verdict_text
from paper.reproduce.records import shortened


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("motivating", epilog=console.example("ltnode reproduce motivating --seeds 0-4"))(reproduce_motivating)


def reproduce_motivating(
    seeds: Seeds = "0-4",
    out: Out = Path("paper/results"),
    runs: Runs = Path("runs"),
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = tasks.STEPS,
    engine: OptionalEngine = None,
    address: Address = None,
) -> None:
    """Run the tasks that a common end-time cannot solve and input-dependent end-times can: concentric annuli and reflection.

    Writes one JSON file per run, a figure and a table to OUT.
    """
    trained = []
    if engine:
        places = {"out": str(out.absolute()), "runs": str(runs.absolute()), "steps": steps}
        named = [(task, model, seed) for seed in console.numbers(seeds) for task in tasks.TASKS for model in tasks.MODELS]
        parts = [{"task": task, "model": model, "seed": seed, **places} for task, model, seed in named]
        report_failures(run_parts(engine, address, "motivating_task", parts))
    with console.resumable(RESUME):
        for seed in console.numbers(seeds):
            for task in tasks.TASKS:
                for model, title in tasks.MODELS.items():
                    console.say(f"{task}: {title}, seed {seed}")
                    trained.append(tasks.reproduce(task, model, seed, out, runs, steps))
    results = [entry.result for entry in trained]
    rows = table.summary_rows(results)
    console.table("", table.HEADER, rows, words=table.WORDS)
    console.say(f"{table.NOTE}.", style="dim")
    for judged in motivating_claims(results):
        good = judged.verdict.outcome is Outcome.REPRODUCED
        line = f"{judged.claim.text}: {verdict_text(judged.verdict)}. {judged.evidence.text}."
        console.say(f"{'✓' if good else '✗'} {line}", style="green" if good else "bold red")
    first = [entry for entry in trained if entry.seed == trained[0].seed]
    console.say(f"figure: {figure.draw(out, first).png}")
    page = out / f"motivating{shortened(steps, tasks.STEPS)}.md"
    page.write_text(markdown_table(table.HEADER, rows), encoding="utf-8")
    console.say(f"table: {page}")
