"""The table of results in the README of the repository."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ltnode.errors import DataError
from ltnode.report.aggregate import Measured, Rows
from ltnode.report.naming import data_title
from ltnode.report.table import markdown_table
from paper.reproduce.claims.all_claims import outcome_counts
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues

BEGIN, END = "<!-- results -->", "<!-- /results -->"
"""Around the table in the README."""
_FOREIGN = {"cifar10": "svhn", "svhn": "cifar10", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}


def results_block(results: Sequence[ImageResult], published: PaperValues, judged: Sequence[JudgedClaim]) -> str:
    """The README's table: what was measured on the test sets, beside the paper's errors, and how the users' question stands."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    lines = []
    for data in reversed(rows.data_sets("clean")):
        for variant in rows.variants("clean", data):
            printed = published.error(data, variant.model) if variant.preset == "paper" else None
            error = rows.number(variant, "clean", "error", data)
            auroc = rows.number(variant, "ood", "auroc", data, ood=_FOREIGN.get(data, ""), score="max_probability")
            cells = [
                data_title(data),
                variant.title,
                "–" if printed is None else f"{printed.mean:.3f} ± {printed.std:.3f}",
                _number(error, 4),
                _number(rows.number(variant, "clean", "log_likelihood", data), 3),
                _number(rows.number(variant, "clean", "ece", data), 3),
                _number(auroc, 1, 100.0),
                "–" if error is None else str(error.seeds),
            ]
            lines.append(cells)
    header = ("data", "model (preset)", "error, paper", "error, ours", "log-likelihood", "ECE", "AUROC, foreign set (%)", "seeds")
    counts = outcome_counts(judged)
    summary = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    note = (
        "Real data, the paper's full schedules, our own training; foreign sets: SVHN for CIFAR10, Fashion-MNIST for MNIST, and "
        "the reverse. The preset is the default where none is named. One seed gives no ranking. "
        f"Of the paper's numbers and statements: {summary}; each with its command in [paper/README.md](paper/README.md)."
    )
    return f"{markdown_table(header, lines)}\n{note}\n"


def with_results(readme: str, block: str) -> str:
    """A README with the block between its marks replaced.

    Raises:
        DataError: The marks are not there, or not once.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise DataError(f"the README must have the marks {BEGIN} and {END} once, around the table of results")
    return pattern.sub(lambda _: f"{BEGIN}\n{block}{END}", readme)


def _number(value: Measured | None, digits: int, scale: float = 1.0) -> str:
    return "–" if value is None else value.text(digits, scale)
