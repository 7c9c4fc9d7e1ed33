"""``ltnode demo``: train four models on small data and compare their uncertainty."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.demo import demo as experiment
from ltnode.demo.training import POINTS, STEPS, Watch
from ltnode.errors import is_installed
from ltnode.models import MODELS
from ltnode.report.naming import model_title

EXAMPLES = ("ltnode demo --out demo",)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page, the figures and the runs.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, weights and end-times.", min=0)] = 0,
    every: Annotated[bool, typer.Option("--all", help="Train all models of the library instead of four.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Models trained in parallel; by default 2 on two cores.", min=1)] = None,
    steps: Annotated[int, typer.Option(hidden=True, min=1)] = STEPS,
) -> None:
    """See the library work: uncertainty where there are no data.

    Trains NODE, Uni-NODE, LT-NODE and ALT-NODE in under three minutes, and writes a table, figures and a page. LT-NODE and
    ALT-NODE must be as certain as the data allow: a missed goal gives exit status 1.
    """
    models = tuple(MODELS) if every else experiment.DEFAULT_MODELS
    names = f"{len(models)} models" if every else ", ".join(model_title(name) for name in models)
    duration = "several minutes" if every else "about a minute"
    console.say(f"Training {names} on {POINTS} points with a gap: {duration} on two cores.")
    console.say(experiment.setting_text(steps).replace("`", ""), style="dim")
    if not is_installed("matplotlib"):
        console.warn("matplotlib is not installed, so that there will be a table and no figures: pip install 'ltnode[plot]'")
    with console.resumable("Run the same command again; the demo starts from the beginning."), _progress(models, steps) as watch:
        result = experiment.run_demo(out, models, seed=seed, steps=steps, jobs=jobs, watch=watch)
    console.table(
        "", experiment.HEADER, [experiment.cells(row) for row in (*result.rows, result.process)], words=experiment.WORDS
    )
    verdicts = experiment.verdicts(result.rows)
    for good, sentence in verdicts:
        console.say(f"{'✓' if good else '✗'} {sentence}", style="green" if good else "bold red")
    console.say(f"Done in {result.seconds:.0f} s. Open the page in a browser: {result.page.resolve().as_uri()}")
    extra = "" if is_installed("fastapi") else " (first: pip install 'ltnode[serve]')"
    console.say(f"Explore the trained models: {_program()} serve {(out / 'runs').as_posix()}{extra}")
    if not all(good for good, _ in verdicts):
        console.error("the demo misses the goals that are marked with ✗ above")
        raise typer.Exit(1)


def _program() -> str:
    """The command that starts ltnode from the current folder: its name if the shell finds it, otherwise its path."""
    if shutil.which("ltnode"):
        return "ltnode"
    program = Path(sys.argv[0])
    return os.path.relpath(program) if program.name == "ltnode" and program.exists() else f"{sys.executable} -m ltnode.cli"


@contextmanager
def _progress(models: Sequence[str], steps: int) -> Iterator[Watch | None]:
    """Show one progress bar per model on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.err(), transient=True) as progress:
        tasks = {name: progress.add_task(model_title(name), total=steps) for name in models}
        yield lambda name, step: progress.update(tasks[name], completed=min(step, steps))
