"""The tables of results in the README and the documentation: what the default recipe was measured to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.errors import DataError
from ltnode.report.naming import data_title, model_title
from ltnode.report.table import MISSING, markdown_table
from paper.reproduce.claims.all_claims import outcome_counts
from paper.reproduce.claims.verdict import JudgedClaim, Outcome

BEGIN, END = "<!-- results -->", "<!-- /results -->"
"""Marks around the tables in the README and in other pages."""
_SETS = ("cifar10", "svhn", "fashion-mnist", "mnist")
_MODELS = ("node", "uni-node", "lt-node", "alt-node", "distilled", "5 x node")
_TITLES = {"distilled": "LT-NODE, distilled from 5 NODEs"}
_HEADER = (
    "data",
    "model",
    "error",
    "log-likelihood",
    "ECE (perfect)",
    "rotated log-likelihood",
    "AUROC, foreign set",
    "FPR at 95 %",
    "solves",
)


def read_promises(path: Path) -> dict[str, Any]:
    """Read the record of ``benchmarks/promises.py``.

    Raises:
        DataError: The record is missing or damaged.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); restore it from the repository") from error
    return record


def results_block(record: Mapping[str, Any], judged: Sequence[JudgedClaim]) -> str:
    """What the default recipe was measured to do on the test sets, and how many claims of the paper are reproduced."""
    entries = {(entry["data"], entry["model"]): entry for entry in record["table"]}
    lines = [_line(entries[data, model]) for data in _SETS for model in _MODELS if (data, model) in entries]
    counts = outcome_counts(judged)
    claims = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    return (
        f"{markdown_table(_HEADER, lines)}\n"
        "Mean ± standard deviation over five seeds on the test sets; the same recipe for every model, each with the weight decay "
        "that a search on held-out training images chose for it. 7 % of the training images are held out for temperature, "
        f"widening and familiarity. ECE (perfect): what a perfectly calibrated model would show at this size. Rotated: "
        f"{record['protocol']['rotated']}. The foreign set is SVHN for CIFAR10, Fashion-MNIST for MNIST, and the reverse; it is "
        "detected by the distance. [The record](../benchmarks/results/promises.json) has every seed, "
        "[the script](../benchmarks/promises.py) repeats it.\n\n"
        f"{_tests(record['tests'])}\n\n{_noise(record['rows'])}\n\n"
        f"The paper's own numbers and statements: {claims}; [paper/README.md](../paper/README.md) lists each with its command.\n"
    )


def ensembles_block(record: Mapping[str, Any]) -> str:
    """What one network and an ensemble of five were measured to do, for the page on ensembles."""
    return _table(record, ("node", "lt-node", "distilled", "5 x node", "5 x lt-node"))


def comparison_block(record: Mapping[str, Any]) -> str:
    """One plain network, one with a latent end-time, and an ensemble, for the README and for who chooses between them."""
    return _table(record, ("node", "lt-node", "5 x node"))


def _table(record: Mapping[str, Any], models: Sequence[str], data: str = "cifar10") -> str:
    entries = {entry["model"]: entry for entry in record["table"] if entry["data"] == data}
    return f"{markdown_table(_HEADER, [_line(entries[model]) for model in models if model in entries])}\n"


RESULT_PAGES: dict[str, Callable[[Mapping[str, Any], Sequence[JudgedClaim]], str]] = {
    "README.md": lambda record, judged: comparison_block(record),
    "docs/when-to-use.md": lambda record, judged: comparison_block(record),
    "docs/results.md": results_block,
    "docs/ensembles.md": lambda record, judged: ensembles_block(record),
}
"""What stands between the marks of a page, by its path in the repository."""


def with_results(page: str, block: str) -> str:
    """Replace the block between the marks of a page.

    Raises:
        DataError: The page does not contain the marks exactly once.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise DataError(f"the page must have the marks {BEGIN} and {END} exactly once, around the table of results")
    return pattern.sub(lambda _: f"{BEGIN}\n{block}{END}", page)


def _line(entry: Mapping[str, Any]) -> list[str]:
    ensemble = entry["model"].startswith("5 x ")
    name = entry["model"].removeprefix("5 x ")
    title = f"ensemble of 5 {model_title(name)}s" if ensemble else _TITLES.get(name) or model_title(name)
    perfect = entry["ECE if calibrated"]
    ece = _number(entry["ECE"], 3, ensemble) + (MISSING if perfect is None else f" ({perfect['mean']:.3f})")
    numbers = [_number(entry[column], digits, ensemble) for column, digits in (("error", 4), ("LL", 3))]
    shifted = [_number(entry[column], digits, ensemble) for column, digits in (("rotated LL", 2), ("AUROC", 3), ("FPR95", 2))]
    return [data_title(entry["data"]), title, *numbers, ece, *shifted, "5" if ensemble else "1"]


def _number(value: Mapping[str, float] | None, digits: int, single: bool) -> str:
    if value is None:
        return MISSING
    return f"{value['mean']:.{digits}f}" + ("" if single else f" ± {value['std']:.{digits}f}")


def _tests(tests: Sequence[Mapping[str, Any]]) -> str:
    """LT-NODE against NODE in words, from the corrected tests."""

    def found(view: str, verdict: str) -> str:
        chosen = [test for test in tests if test["view"] == view and test["verdict"] == verdict]
        return ", ".join(f"{test['metric']} on {data_title(test['data'])}" for test in chosen) or "nothing"

    return (
        "**LT-NODE against NODE** (Welch's test, five seeds against five, Holm-corrected over all 32 comparisons). Before a "
        f"temperature, LT-NODE is better in: {found('raw', 'better')}; worse in: {found('raw', 'worse')}. After one temperature "
        f"for each, it is better in: {found('tempered', 'better')}; worse in: {found('tempered', 'worse')}. All other "
        "differences in error, log-likelihood, ECE and rotated log-likelihood are within the noise."
    )


def _noise(rows: Sequence[Mapping[str, Any]]) -> str:
    """What LT-NODE says about inputs that are not images of anything, as the worst mean over the four sets."""
    ours = [row for row in rows if row["model"] == "lt-node"]
    flagged = {}
    for kind in ("uniform noise", "Gaussian noise", "constant", "gradient"):
        by_set = [[row["made_up"][kind]["flagged"] for row in ours if row["data"] == data] for data in _SETS]
        flagged[kind] = min(sum(values) / len(values) for values in by_set if values)
    alarms = [f"{data_title(data)} {100 * _mean(ours, data, lambda row: row['flagged_test']):.1f} %" for data in _SETS]
    sure = [
        f"{data_title(data)} {_mean(ours, data, lambda row: row['made_up']['uniform noise']['mean_max_probability']):.2f}"
        for data in _SETS
    ]
    shares = ", ".join(f"{kind} at least {100 * share:.1f} %" for kind, share in flagged.items())
    return (
        f"**Inputs that are no images of anything**, flagged as unfamiliar by LT-NODE at a false-alarm rate of 5 %: {shares}, on "
        f"every set. Test images flagged: {', '.join(alarms)}. The probabilities alone do not tell: the largest one averages "
        f"{', '.join(sure)} on uniform noise, after widening. Rely on the flag."
    )


def _mean(rows: Sequence[Mapping[str, Any]], data: str, read: Callable[[Mapping[str, Any]], float]) -> float:
    values = [read(row) for row in rows if row["data"] == data]
    return sum(values) / len(values)
