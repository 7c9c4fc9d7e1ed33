"""The table of results in the README of the repository."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ltnode.errors import DataError
from ltnode.report.aggregate import Measured, Rows
from ltnode.report.naming import data_title
from ltnode.report.table import MISSING, markdown_table
from paper.reproduce.claims.all_claims import outcome_counts
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues

BEGIN, END = "<!-- results -->", "<!-- /results -->"
"""Marks around the table in the README."""
_FOREIGN = {"cifar10": "svhn", "svhn": "cifar10", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}
_HEADER = ("data", "model (preset)", "error, paper", "error, ours", "log-likelihood", "ECE", "AUROC, foreign set (%)", "seeds")


def results_block(results: Sequence[ImageResult], published: PaperValues, judged: Sequence[JudgedClaim]) -> str:
    """What was measured on the test sets, with the paper's errors, and how many of its claims are reproduced."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    lines = []
    for data in reversed(rows.data_sets("clean")):
        for variant in rows.variants("clean", data):
            printed = published.error(data, variant.model) if variant.preset == "paper" else None
            error, likelihood, ece = (rows.number(variant, "clean", m, data) for m in ("error", "log_likelihood", "ece"))
            auroc = rows.number(variant, "ood", "auroc", data, ood=_FOREIGN.get(data, ""), score="max_probability")
            lines.append(
                [
                    data_title(data),
                    variant.title,
                    MISSING if printed is None else printed.text,
                    *(_number(error, 4), _number(likelihood, 3), _number(ece, 3), _number(auroc, 1, 100.0)),
                    MISSING if error is None else str(error.seeds),
                ]
            )
    counts = outcome_counts(judged)
    summary = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    note = (
        "These are results of our own training on the real data, with the paper's full schedules. The foreign set is SVHN for "
        "CIFAR10, Fashion-MNIST for MNIST, and the reverse. Models without a named preset have the default preset. One seed does "
        f"not allow a ranking. The paper's numbers and statements: {summary}; "
        "[paper/README.md](paper/README.md) lists each with its command."
    )
    return f"{markdown_table(_HEADER, lines)}\n{note}\n"


def with_results(readme: str, block: str) -> str:
    """Replace the block between the marks of a README.

    Raises:
        DataError: The README does not contain the marks exactly once.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise DataError(f"the README must have the marks {BEGIN} and {END} exactly once, around the table of results")
    return pattern.sub(lambda _: f"{BEGIN}\n{block}{END}", readme)


def _number(value: Measured | None, digits: int, scale: float = 1.0) -> str:
    return MISSING if value is None else value.text(digits, scale)
