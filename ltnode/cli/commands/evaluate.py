"""``ltnode evaluate``: evaluate a trained run under the protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ltnode.cli import console
from ltnode.cli.run_folder import RunFolder
from ltnode.evaluation import PROTOCOLS, ResultRow
from ltnode.evaluation import evaluate as run_protocols
from ltnode.hub import locate
from ltnode.report.runs import EVALUATION

EXAMPLES = (
    "ltnode evaluate runs/x",
    "ltnode evaluate runs/cifar --protocols clean,ood --ood svhn --limit 1000 --device cuda",
)
_HEADLINES = {
    "clean": ("error", "log_likelihood", "brier", "ece", "mean_entropy"),
    "ood": ("auroc", "aupr_in", "aupr_out", "fpr95", "mean_entropy"),
    "regression": ("rmse", "nll", "crps", "coverage", "entropy"),
    "temperature": ("temperature", "log_likelihood", "ece"),
    "conformal": ("coverage", "mean_set_size"),
}
"""Metrics that are shown of a protocol; the error for all others."""


def evaluate(
    run: RunFolder,
    protocols: Annotated[
        str, typer.Option(help=f"Separated by commas: {', '.join(PROTOCOLS)}; by default the applicable ones of the paper.")
    ] = "",
    data: Annotated[
        str | None, typer.Option(help="Data set, or a folder of labelled images; by default the one of the training.")
    ] = None,
    ood: Annotated[str | None, typer.Option(help="Out-of-distribution set; by default the partner of the data set.")] = None,
    out: Annotated[Path | None, typer.Option(help=f"File for the results; by default RUN/{EVALUATION}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start the file again instead of continuing it.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default auto.")] = None,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    draw: Annotated[str | None, typer.Option(help="quantile or random; by default random for the preset paper.")] = None,
    steps: Annotated[str | None, typer.Option(help="stored or adaptive; by default adaptive for the preset paper.")] = None,
    draw_seed: Annotated[int, typer.Option(help="Seed of random end-times, corruptions and attacks.", min=0)] = 0,
    draws: Annotated[int, typer.Option(help="Number of random draws over which the spread is reported; 0 for none.", min=0)] = 5,
    batch_size: Annotated[int | None, typer.Option(help="Examples per prediction.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many test examples, the first ones.", min=1)] = None,
) -> None:
    """Evaluate a trained run: quality, calibration, rotation, out-of-distribution data, attacks.

    The results are written to a file with their provenance. Protocols that it already holds are skipped.
    """
    folder = locate(run)
    file = out or folder / EVALUATION
    options: dict[str, Any] = {
        "samples": samples, "draw": draw, "steps": steps, "draw_seed": draw_seed, "draws": draws, "batch_size": batch_size,
        "limit": limit,
    }  # fmt: skip
    chosen = console.words(protocols) or None
    with console.resumable(f"Finished protocols are in {file}: run the same command again to continue."):
        rows = run_protocols(folder, data, chosen, ood=ood, out=file, overwrite=overwrite, device=device, **options)
    lines = [_line(row) for row in rows if _is_headline(row)]
    console.table("", ("Protocol", "Setting", "Measure", "Value", "Examples", "Evaluations"), lines, words=(0, 1, 2))
    console.say(f"All {len(rows)} results are in {file}; make a report of them with: ltnode report {run.as_posix()} --out report")


def _is_headline(row: ResultRow) -> bool:
    if isinstance(row.value, tuple) or "statistic" in row.setting:
        return False
    return row.metric in _HEADLINES.get(row.protocol, ("error",))


def _line(row: ResultRow) -> tuple[str, ...]:
    setting = ", ".join(f"{key} {value}" for key, value in row.setting.items())
    evaluations = "" if row.cost is None or row.cost.evaluations is None else f"{row.cost.evaluations:.0f}"
    return row.protocol, setting, row.metric.replace("_", " "), f"{row.number:.4f}", str(row.n), evaluations
