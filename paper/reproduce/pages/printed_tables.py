"""The two tables of results that the paper prints, in its own layout, with our column next to each of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ltnode.report.aggregate import Measured
from ltnode.report.naming import data_title, model_title
from ltnode.report.table import MISSING, markdown_table
from paper.reproduce.claims.numbers import DATA, FOREIGN, MODELS, ImageNumbers
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues

_MARKS = {Outcome.REPRODUCED: "✓", Outcome.NOT_REPRODUCED: "✗", Outcome.REVERSED: "✗", Outcome.MISSING: ""}
_METRICS = {"auroc": "AUROC", "aupr_in": "AUPR In", "aupr_out": "AUPR Out"}
NOTE = "✓ reproduced, ✗ not reproduced; means ± standard deviations over five seeds in the paper, and over *seeds* in ours."


def generalisation(results: Sequence[ImageResult], judged: Sequence[JudgedClaim], published: PaperValues) -> str:
    """The paper's table 1: parameters and test errors."""
    numbers, marks = ImageNumbers(results), _marks(judged)
    read = numbers.number("clean", "error")
    lines = []
    for data in DATA:
        for model in MODELS:
            size, printed, ours = (
                published.parameters_in_millions(data, model),
                published.error(data, model),
                numbers.measured(read, data, model),
            )
            if size is None or printed is None:
                continue
            first = f"**{data_title(data)}**" if model == MODELS[0] else ""
            mark = marks.get(f"error.{data}.{model}", "")
            lines.append([first, model_title(model), f"{size:.2f}M", printed.text, _ours(ours, 4, mark), _seeds(ours)])
    header = ("Dataset", "Model", "#Parameters", "Error, paper", "Error, ours", "Seeds")
    return markdown_table(header, lines)


def detection(results: Sequence[ImageResult], judged: Sequence[JudgedClaim], published: PaperValues) -> str:
    """The paper's table 2: detection of foreign images by the largest probability, in percent."""
    numbers, marks = ImageNumbers(results), _marks(judged)
    lines = []
    for data, other in FOREIGN.items():
        for model in MODELS:
            cells, ours = [], None
            for metric in _METRICS:
                printed = published.detection(data, other, model, metric)
                read = numbers.number("ood", metric, 100, ood=other, score="max_probability")
                ours = numbers.measured(read, data, model)
                mark = marks.get(f"{metric}.{data}.{model}", "")
                cells += [MISSING if printed is None else f"{printed.mean:.2f} ± {printed.std:.2f}", _ours(ours, 2, mark)]
            first = [f"**{data_title(data)}**", data_title(other)] if model == MODELS[0] else ["", ""]
            lines.append([*first, model_title(model), *cells, _seeds(ours)])
    pairs = (f"{title}, {whose}" for title in _METRICS.values() for whose in ("paper", "ours"))
    return markdown_table(("Dataset", "OOD data", "Model", *pairs, "Seeds"), lines)


def _marks(judged: Sequence[JudgedClaim]) -> Mapping[str, str]:
    return {entry.claim.key: _MARKS[Outcome(entry.verdict.outcome)] for entry in judged if entry.claim.paper is not None}


def _ours(number: Measured | None, digits: int, mark: str) -> str:
    return MISSING if number is None else f"{number.text(digits)}\N{NO-BREAK SPACE}{mark}".rstrip()


def _seeds(number: Measured | None) -> str:
    return MISSING if number is None else str(number.seeds)
