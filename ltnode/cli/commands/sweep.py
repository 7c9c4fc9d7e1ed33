"""``ltnode sweep``: train many configurations, on this machine or on a Ray cluster, and find the best."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ltnode.cli import console
from ltnode.cli.engine_options import Address, Engine, Gpus, Jobs, Threads
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import check_engine
from ltnode.cluster.search import require_optuna
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.storage import file_system
from ltnode.cluster.sweep import Sweep, SweepResult, Trial
from ltnode.cluster.sweep_report import ranked_points, value_text, write_report

EXAMPLES = (
    "ltnode sweep sweep.toml --out runs/sweep",
    "ltnode sweep sweep.toml --engine ray --address auto --storage s3://bucket/sweep --out runs/sweep",
)
_FAILED = 2
_RUNNING_ROWS = 12
_BEST_ROWS = 5
_SHOWN = 10


def sweep(
    spec: Annotated[Path, typer.Argument(help="TOML file: model, data, seeds, [train], [search].", metavar="SPEC.toml")],
    out: Annotated[Path, typer.Option(help="Folder of the sweep, with one run folder per training.")],
    engine: Engine = "local",
    address: Address = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Path or fsspec URL where workers keep checkpoints, if they do not share --out: s3://bucket/sweep."),
    ] = None,
    jobs: Jobs = None,
    threads: Threads = 1,
    gpus: Gpus = None,
) -> None:
    """Search over the training configuration: a grid, at random, or Bayesian, with early ends for hopeless trainings.

    Every training is an ordinary run folder in --out. The best is selected by the log-likelihood of held-out training examples,
    never by test data. Interrupted, the same command continues: finished trainings are kept, and others go on from their last
    checkpoint. The report is in OUT/report.html.
    """
    check_engine(engine, address)
    require_optuna()
    if storage is not None:
        file_system(storage)  # a wrong URL is reported before anything starts
    read = SweepSpec.read(spec)
    console.say(
        f"{read.n_points} points x {len(read.data)} data sets x {len(read.seeds)} seeds = {read.n_runs} trainings in {out}"
    )
    device = str(read.train.get("device", "auto"))
    advice = "Finished trainings and checkpoints are kept: run the same command again to continue."
    with (
        console.resumable(advice),
        make_executor(engine, address=address, jobs=jobs, threads=threads, gpus=gpus, device=device) as executor,
        _live_table() as show,
    ):
        result = Sweep(read, out, executor, storage=storage, threads=threads, on_change=show).run()
    page = write_report(read, result, out)
    _summary(read, result)
    console.say(f"The report is in {page}")
    if all(result.best(data) is None for data in read.data):
        console.error(f"no point has all its trainings complete; the reasons are in {out / 'trials.csv'}")
        raise typer.Exit(_FAILED)


@contextmanager
def _live_table() -> Iterator[Callable[[SweepResult], None]]:
    """A table that follows the sweep on a terminal, and elsewhere one line for every training that is over."""
    if not sys.stdout.isatty():
        said: set[str] = set()

        def say(result: SweepResult) -> None:
            for trial in result.trials:
                if trial.is_over and trial.name not in said:
                    said.add(trial.name)
                    console.say(f"{len(said)}/{result.n_runs} {trial.name}: {_described(trial)}")

        yield say
        return
    with Live(console=console.out(), refresh_per_second=4, transient=True) as live:
        yield lambda result: live.update(live_table(result))


def live_table(result: SweepResult) -> Table:
    """The state of a sweep on one screen: what is running, and the best so far; its size does not grow with the sweep."""
    counts = Counter(trial.status for trial in result.trials)
    over = sum(trial.is_over for trial in result.trials)
    running = [trial for trial in result.trials if trial.status == "running"]
    complete = [trial for trial in result.trials if trial.status == "complete" and trial.log_likelihood is not None]
    best = sorted(complete, key=lambda trial: -(trial.log_likelihood or 0.0))[:_BEST_ROWS]
    words = ", ".join(f"{count} {status}" for status, count in counts.items())
    table = Table(title=f"{over} of {result.n_runs} trainings are over ({words})", title_justify="left", box=SIMPLE_HEAD)
    for name in ("training", "values", "status"):
        table.add_column(name)
    for name in ("steps", "held-out\nlog-likelihood"):
        table.add_column(name, justify="right")
    for trial in (*running[:_RUNNING_ROWS], *best):
        value = "" if trial.log_likelihood is None else f"{trial.log_likelihood:.4f}"
        cells = (trial.name, _values(trial), trial.status, str(trial.steps), value)
        table.add_row(*(Text(console.printable(cell)) for cell in cells))
    if len(running) > _RUNNING_ROWS:
        table.add_row(f"and {len(running) - _RUNNING_ROWS} more running", "", "", "", "")
    return table


def _values(trial: Trial) -> str:
    return ", ".join(f"{key}={value_text(value)}" for key, value in trial.values.items())


def _described(trial: Trial) -> str:
    if trial.status == "complete":
        return f"{_values(trial)}; held-out log-likelihood {trial.log_likelihood:.4f} after {trial.steps} steps"
    return f"{_values(trial)}; {trial.status}. {trial.message}"


def _summary(spec: SweepSpec, result: SweepResult) -> None:
    keys = list(spec.search)
    for data in spec.data:
        ranked, best = ranked_points(result, data), result.best(data)
        rows = [(str(t.point), *(value_text(t.values[key]) for key in keys), f"{score:.4f}") for t, score in ranked[:_SHOWN]]
        if best is not None:
            console.table(f"Best points on {data}", ("point", *keys, "held-out\nlog-likelihood"), rows)
            console.say(f"Best run: {best.name}")
    if result.importance:
        console.facts({f"importance of {key}": f"{share:.3f}" for key, share in result.importance.items()})
