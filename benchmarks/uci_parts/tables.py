"""Tables of the record beside the published results, and what the results are asked to reach."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ltnode.report.table import MISSING, markdown_table
from uci_parts.data import SETS
from uci_parts.methods import LTNODE, METHODS, MOST_ROWS
from uci_parts.record import Row

PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
BEGIN, END = "<!-- begin: benchmarks/uci.py -->", "<!-- end: benchmarks/uci.py -->"
NLL_AS_GOOD, NLL_WITHIN_ERROR, RMSE_AS_GOOD = 6, 8, 6
FEWEST = 5
"""Splits of a set from which the tables show a mean."""
COVERAGE_MEAN, COVERAGE_LEAST = (0.88, 0.92), 0.85


class Mean(NamedTuple):
    """Mean over the splits, its standard error, and the number of splits."""

    value: float
    error: float
    splits: int


Means = Mapping[tuple[str, str], Mapping[str, Mean]]
"""By set and method, then by name of the number."""


def means_of(rows: Sequence[Row]) -> Means:
    """The means of every set and method of which all splits are measured, or at least `FEWEST`."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["data"], row["method"]), []).append(row)
    complete = {key: of_key for key, of_key in found.items() if len(of_key) >= min(FEWEST, SETS[key[0]].splits)}
    return {key: {name: _mean([row[name] for row in of_key]) for name in _numbers(of_key[0])} for key, of_key in complete.items()}


def _numbers(row: Row) -> list[str]:
    return [name for name in ("nll", "rmse", "coverage", "interval", "seconds") if name in row]


def _mean(values: Sequence[float]) -> Mean:
    return Mean(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values))


def best_published(number: str, name: str) -> float:
    """The lowest published mean of the methods that ours is compared with."""
    return min(PUBLISHED[number][method][name][0] for method in PUBLISHED["compared"])


class Goal(NamedTuple):
    """What is asked, what was found, and whether that is enough."""

    asked: str
    found: str
    met: bool


def goals(means: Means) -> list[Goal]:
    """The goals for LT-NODE; none while the splits of a set are missing.

    A standard error is ours. RMSE is compared at the two digits of the published tables, NLL as it is.
    """
    if not all(_complete(means, name) for name in SETS):
        return []
    ours = {name: means[name, LTNODE] for name in SETS}
    best = {name: best_published("nll", name) for name in SETS}
    as_good = [name for name in SETS if ours[name]["nll"].value <= best[name]]
    within = [name for name in SETS if ours[name]["nll"].value <= best[name] + ours[name]["nll"].error]
    rmse = [name for name in SETS if round(ours[name]["rmse"].value, 2) <= best_published("rmse", name)]
    counted = (
        ("NLL at least as good as the best published", as_good, NLL_AS_GOOD),
        ("NLL within one standard error of it", within, NLL_WITHIN_ERROR),
        ("RMSE at least as good as the best published, at its rounding", rmse, RMSE_AS_GOOD),
    )
    shares = {name: ours[name]["interval"].value for name in SETS}
    mean, (lowest, least) = statistics.fmean(shares.values()), min((share, name) for name, share in shares.items())
    low, high = COVERAGE_MEAN
    return [
        *(
            Goal(f"{asked}, on {count} of {len(SETS)} sets", f"{len(on)}: {', '.join(on) or 'none'}", len(on) >= count)
            for asked, on, count in counted
        ),
        Goal(f"mean coverage of `predict_interval` for 90 % from {low} to {high}", f"{mean:.3f}", low <= mean <= high),
        Goal(f"no set below {COVERAGE_LEAST}", f"{lowest:.3f} ({least})", lowest >= COVERAGE_LEAST),
    ]


def _complete(means: Means, name: str) -> bool:
    """Whether all splits of a set are measured for LT-NODE."""
    return (name, LTNODE) in means and means[name, LTNODE]["nll"].splits == SETS[name].splits


def table(means: Means, number: str) -> str:
    """One number of every set: the published means and standard errors, then ours."""
    published = PUBLISHED.get(number, {})
    header = ["set", *(f"{method} (published)" for method in published), *METHODS]
    lines = []
    for name in SETS:
        cells = [" ± ".join(f"{value:.2f}" for value in published[method][name]) for method in published]
        lines.append([name, *cells, *(_cell(means, (name, method), number) for method in METHODS)])
    return markdown_table(header, lines, words=(0,))


def _cell(means: Means, key: tuple[str, str], number: str) -> str:
    if key not in means or number not in means[key]:
        return MISSING
    value, error, splits = means[key][number]
    some = "" if splits == SETS[key[0]].splits else f" ({splits} splits)"
    if number == "seconds":
        return (f"{value:.2g}" if value < 10 else f"{value:.0f}") + some
    digits = 4 if number == "rmse" and value < 0.1 else 3
    return f"{value:.{digits}f}" + ("" if number in ("coverage", "interval") else f" ± {error:.{digits}f}") + some


def text(rows: Sequence[Row]) -> str:
    """The section of the page: tables and goals."""
    means = means_of(rows)
    titles = {
        "nll": "Negative log-likelihood per row in nats, mean over the splits ± standard error:",
        "rmse": "RMSE in the units of the target:",
        "coverage": "Share of test targets in the central 90 % of the predicted Gaussian:",
        "seconds": "CPU seconds of fit and prediction on one thread, per split:",
    }
    parts = [f"{title}\n\n{table(means, number)}" for number, title in titles.items()]
    parts += [
        f"{method}: sets of more than {most:,} rows are left out, because {why}." for method, (most, why) in MOST_ROWS.items()
    ]
    asked = goals(means)
    if asked:
        lines = [[goal.asked, goal.found, "met" if goal.met else "missed"] for goal in asked]
        intervals = ", ".join(f"{name} {means[name, LTNODE]['interval'].value:.3f}" for name in SETS)
        parts += [f"Coverage of LT-NODE's `predict_interval`: {intervals}.", markdown_table(["asked", "found", "verdict"], lines)]
    else:
        count = sum(_complete(means, name) for name in SETS)
        parts.append(f"All splits are measured for LT-NODE on {count} of the {len(SETS)} sets; its goals need all of them.")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def render(rows: Sequence[Row], page: str) -> str:
    """The page with the tables of the record between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text(rows)}{END}{after}"
