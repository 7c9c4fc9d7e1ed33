"""``ltnode reproduce synthetic``: the paper's experiment on one-dimensional data with a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ltnode.cli import console
from ltnode.cli.engine_options import Address, OptionalEngine
from ltnode.report.table import markdown_table
from paper.reproduce.claims.one_dimensional import OneDimensionalResults, one_dimensional_claims
from paper.reproduce.claims.significance import with_significance
from paper.reproduce.commands.options import RESUME, Out, Runs, Seeds, report_failures
from paper.reproduce.elsewhere import run_parts
from paper.reproduce.folder import CLONE
from paper.reproduce.one_dimensional import figures, selection, table
from paper.reproduce.one_dimensional.experiment import (
    EVERY,
    ITERATIONS,
    OTHERS,
    VARIANTS,
    Variant,
    chosen,
    reproduce,
    result_name,
)
from paper.reproduce.pages.claims import VERDICT_HEADER, verdict_rows
from paper.reproduce.pages.remarks import Remarks
from paper.reproduce.records import read_results, shortened


def register(group: typer.Typer) -> None:
    """Add the command."""
    examples = ("ltnode reproduce synthetic", "ltnode reproduce synthetic --seeds 0-4 --engine ray --address auto")
    group.command("synthetic", epilog=console.example(*examples))(reproduce_synthetic)


def reproduce_synthetic(
    seeds: Seeds = "0",
    models: Annotated[str, typer.Option(help=f"Only these, separated by commas: {', '.join(EVERY)}.")] = "",
    out: Out = Path("paper/results"),
    runs: Runs = Path("runs"),
    iterations: Annotated[int, typer.Option(help=f"Training steps; the paper makes {ITERATIONS}.", min=1)] = ITERATIONS,
    select: Annotated[bool, typer.Option("--selection/--no-selection", help="Also train NODEs at five end-times.")] = True,
    train: Annotated[
        bool, typer.Option("--train/--report-only", help="Train what is missing, or only show what is recorded.")
    ] = True,
    engine: OptionalEngine = None,
    address: Address = None,
) -> None:
    """Run the 1-D experiment: entropy in the gap, posteriors, fit, and whether q(T) selects the end-time.

    Writes one JSON file per run, three figures and a table to OUT. An interrupted command continues where it stopped when it is
    run again, and ends with the same numbers, bit for bit.
    """
    chosen_seeds, variants = console.numbers(seeds), chosen(console.words(models))
    if train and engine:
        places = {"out": str(out.absolute()), "runs": str(runs.absolute()), "iterations": iterations}
        models_of_seeds = [{"variant": v.name, "seed": seed, **places} for seed in chosen_seeds for v in variants]
        report_failures(run_parts(engine, address, "synthetic_variant", models_of_seeds))
        nodes = [{"time": time, "seed": seed, **places} for seed in chosen_seeds for time in selection.TIMES if select]
        report_failures(run_parts(engine, address, "synthetic_time", nodes))
    if train:
        _train(chosen_seeds, variants, select, out, runs, iterations)
    stems = [result_name(name, seed, iterations) for seed in chosen_seeds for name in VARIANTS]
    others = (result_name(name, seed, iterations) for seed in chosen_seeds for name in OTHERS)
    stems += [stem for stem in others if (out / f"{stem}.json").exists()]
    times = [selection.selection_name(time, seed, iterations) for seed in chosen_seeds for time in selection.TIMES]
    (results, missing), (selected, not_selected) = read_results(out, stems), read_results(out, times)
    if results:
        _show(results, selected, out, iterations)
    if iterations != ITERATIONS:
        length = f"{iterations} iterations are not the paper's {ITERATIONS}"
        console.say(f"{length}: these verdicts say nothing about the paper.", style="yellow")
    if missing or not_selected:
        names = ", ".join(missing + not_selected)
        console.say(f"missing (run the command without --models to get all of them): {names}", style="yellow")


def _train(seeds: Sequence[int], variants: Sequence[Variant], select: bool, out: Path, runs: Path, iterations: int) -> None:
    with console.resumable(RESUME):
        for seed in seeds:
            for variant in variants:
                console.say(f"{variant.title}, seed {seed}")
                reproduce(variant, seed, out, runs, iterations)
            for time in selection.TIMES if select else ():
                console.say(f"NODE at T = {time:g}, seed {seed}")
                selection.reproduce_time(time, seed, out, runs, iterations)


def _show(results: Sequence[Mapping[str, Any]], selected: Sequence[Mapping[str, Any]], out: Path, iterations: int) -> None:
    """Show and write the measurements, the verdicts and the figures."""
    published = CLONE.published()
    measured = table.measurement_rows(results)
    console.table("", table.HEADER, measured, words=table.WORDS)
    console.say(table.NOTE, style="dim")
    claims = with_significance(one_dimensional_claims(OneDimensionalResults(results, selected), published))
    # The remarks explain the recorded results of the repository, not those of a user's own runs.
    is_recorded = iterations == ITERATIONS and out.resolve() == CLONE.results.resolve()
    remarks = Remarks.read(CLONE.remarks) if is_recorded else Remarks()
    verdicts = verdict_rows([entry for entry in claims if entry.evidence.text], remarks)
    console.table("", VERDICT_HEADER, verdicts, words=range(len(VERDICT_HEADER)), lines=True)
    for figure in figures.draw(out, results, selected, published):
        console.say(f"figure: {figure.png}")
    page = out / f"synthetic{shortened(iterations, ITERATIONS)}.md"
    text = f"{markdown_table(table.HEADER, measured)}\n{table.NOTE}\n\n{markdown_table(VERDICT_HEADER, verdicts)}"
    page.write_text(text, encoding="utf-8")
    console.say(f"table: {page}")
