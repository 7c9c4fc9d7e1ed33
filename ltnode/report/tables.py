"""Tables of results with the published values beside ours, in Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ltnode.report.aggregate import Measured, Rows
from ltnode.report.naming import Variant, data_title, in_order, model_title
from ltnode.report.published import Printed, Published

MISSING = "–"
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "±": r"$\pm$", "→": r"$\to$",
     "–": "--", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        name: Stem of its files.
        title: What it shows.
        header: Names of the columns.
        rows: As many cells each.
        words: Columns that hold words and stand to the left; the others hold numbers.
        note: What a reader must know of it.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0, 1)
    note: str = ""

    def markdown(self) -> str:
        """For a README."""
        rule = ["---" if column in self.words else "---:" for column in range(len(self.header))]
        lines = [self.header, rule, *self.rows]
        body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        note = f"\n\n{self.note}" if self.note else ""
        return f"**{self.title}**\n\n{body}{note}\n"

    def latex(self) -> str:
        """For a paper; needs the package booktabs."""
        columns = "".join("l" if column in self.words else "r" for column in range(len(self.header)))

        def line(cells: tuple[str, ...]) -> str:
            return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

        body = "\n".join(["    " + line(row) for row in self.rows])
        caption = f"{self.title}. {self.note}".strip().translate(_LATEX)
        return (
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{caption}}}\n  \\label{{tab:{self.name}}}\n"
            f"  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {line(self.header)}\n    \\midrule\n"
            f"{body}\n    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
        )

    def html(self) -> str:
        """For a page: a bare table element."""

        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return (
            f"<table>\n<caption>{html.escape(self.title)}</caption>\n<thead>{line(self.header, 'th')}</thead>\n"
            f"<tbody>\n{body}\n</tbody>\n</table>\n"
        )


def generalisation_table(rows: Rows, published: Published) -> Table:
    """The paper's table of parameters (in millions) and test errors, with our columns."""
    lines = []
    for data, variant in _cases(rows, "clean", published):
        printed = published.parameters_in_millions(data, variant.model)
        parameters, error = (rows.number(variant, "clean", metric, data) for metric in ("parameters", "error"))
        lines.append(
            (
                data_title(data),
                variant.title,
                MISSING if printed is None else f"{printed:.2f} M",
                MISSING if parameters is None else f"{parameters.mean / 1e6:.3f} M",
                _printed(published.error(data, variant.model), 3),
                _ours(error, 4),
                _seeds(error),
                _cost(rows, variant, "clean", data)[0],
            )
        )
    header = ("Data", "Model", "Size, paper", "Size, ours", "Error, paper", "Error, ours", "Seeds", "Evaluations")
    return Table("generalisation", "Parameters and test error", header, tuple(lines), note=_SEED_NOTE)


def quality_table(rows: Rows) -> Table:
    """Proper scores and calibration on the test sets, and what the predictions cost."""
    lines = []
    for data, variant in _cases(rows, "clean", Published()):
        measured = ("log_likelihood", "brier", "ece", "aurc", "mean_entropy")
        numbers = [_ours(rows.number(variant, "clean", metric, data), 3) for metric in measured]
        lines.append((data_title(data), variant.title, *numbers, *_cost(rows, variant, "clean", data)))
    header = ("Data", "Model", "LL", "Brier", "ECE", "AURC", "Entropy", "Evaluations", "s / 1000", "Memory")
    return Table(
        "quality", "Scores (LL and entropy in nats), calibration and cost on the test sets", header, tuple(lines), note=_SEED_NOTE
    )


def ood_table(rows: Rows, published: Published) -> Table:
    """The paper's table of out-of-distribution detection by the largest probability, with our columns."""
    lines = []
    for data, other, variant in _foreign_cases(rows, published):
        cells = [f"{data_title(data)} → {data_title(other)}", variant.title]
        setting: dict[str, Any] = {"ood": other, "score": "max_probability"}
        for metric in ("auroc", "aupr_in", "aupr_out"):
            cells.append(_printed(published.detection(data, other, variant.model, metric), 3))
            cells.append(_ours(rows.number(variant, "ood", metric, data, setting), 2, 100.0))
        found = rows.number(variant, "ood", "auroc", data, setting)
        lines.append((*cells, _seeds(found), _cost(rows, variant, "ood", data)[0]))
    pairs = ("AUROC, paper", "ours", "AUPR In, paper", "ours", "AUPR Out, paper", "ours")
    header = ("Data → foreign", "Model", *pairs, "Seeds", "Evaluations")
    title = "Out-of-distribution detection by the largest probability, in percent"
    return Table("ood", title, header, tuple(lines), note=_SEED_NOTE)


def entropy_table(rows: Rows, published: Published) -> Table:
    """Mean entropies on the foreign set, as the paper prints them, and on the own one."""
    lines = []
    for data, other, variant in _foreign_cases(rows, published):
        inside, outside = (
            rows.number(variant, "ood", "mean_entropy", data, {"ood": other, "part": part}) for part in ("in", "out")
        )
        names = (f"{data_title(data)} → {data_title(other)}", variant.title)
        printed = _printed(published.entropy(data, other, variant.model), 3)
        lines.append((*names, printed, _ours(outside, 3), _ours(inside, 3), _seeds(outside)))
    header = ("Data → foreign", "Model", "On foreign data, paper", "ours", "On own data, ours", "Seeds")
    return Table("entropy", "Mean entropy of the predictions, in nats", header, tuple(lines))


def scores_table(rows: Rows) -> Table:
    """Detection by every score: AUROC and FPR95."""
    lines = []
    for data, other, variant in _foreign_cases(rows, Published()):
        cells = [f"{data_title(data)} → {data_title(other)}", variant.title]
        for metric in ("auroc", "fpr95"):
            for score in ("max_probability", "entropy", "mutual_information"):
                found = rows.number(variant, "ood", metric, data, {"ood": other, "score": score})
                cells.append(_ours(found, 1, 100.0))
        lines.append(tuple(cells))
    header = ("Data → foreign", "Model", "AUROC, p", "AUROC, H", "AUROC, I", "FPR95, p", "FPR95, H", "FPR95, I")
    title = "Detection in percent by the largest probability (p), the entropy (H) and the mutual information (I)"
    return Table("scores", title, header, tuple(lines))


def draws_table(rows: Rows) -> Table:
    """How much a random set of end-times decides: mean and deviation over draws of T, averaged over seeds."""
    lines = []
    for data in rows.data_sets("clean"):
        for variant in rows.variants("clean", data):
            cells = [data_title(data), variant.title]
            for protocol, metric in (
                ("clean", "error"), ("clean", "log_likelihood"), ("clean", "ece"), ("ood", "auroc"), ("ood", "mean_entropy")
            ):  # fmt: skip
                cells.append(_spread(rows, variant, protocol, metric, data))
            if any(cell != MISSING for cell in cells[2:]):
                lines.append(tuple(cells))
    header = ("Data", "Model", "Error", "LL", "ECE", "AUROC, foreign", "Entropy, foreign")
    note = "Mean ± standard deviation over random draws of the end-times; weights fixed, averaged over seeds."
    return Table("draws", "Spread over draws of T", header, tuple(lines), note=note)


def posterior_table(rows: Rows) -> Table:
    """The distribution over T of every model that has one."""
    lines = []
    names = ("alpha", "beta", "mean", "q05", "q95", "tail")
    for protocol in ("clean", "regression"):
        for data in rows.data_sets(protocol):
            for variant in rows.variants(protocol, data):
                found = [rows.number(variant, protocol, f"learnt.{name}", data) for name in names]
                low, high = found[3], found[4]
                if low is not None and high is not None and low.mean < high.mean:
                    lines.append((data_title(data), variant.title, *(_ours(number, 3) for number in found), _seeds(low)))
    header = ("Data", "Model", "α", "β", "Mean of T", "5 %", "95 %", "Tail", "Seeds")
    note = "Tail: P(T > end of the training window). ALT-NODE: averages over test inputs."
    return Table("posteriors", "Learnt posteriors over the end-time", header, tuple(lines), note=note)


def calibration_table(rows: Rows) -> Table:
    """Temperature scaling and conformal sets on held-out data."""
    lines = []
    for data in rows.data_sets("temperature"):
        for variant in rows.variants("temperature", data):
            cells = [data_title(data), variant.title, _ours(rows.number(variant, "temperature", "temperature", data), 2)]
            for metric in ("log_likelihood", "ece"):
                for scaling in ("none", "temperature"):
                    cells.append(_ours(rows.number(variant, "temperature", metric, data, {"scaling": scaling}), 3))
            alpha = next(iter(rows.settings("conformal", data, "alpha")), None)
            for metric in ("coverage", "mean_set_size"):
                cells.append(_ours(rows.number(variant, "conformal", metric, data, {"alpha": alpha}), 3))
            lines.append(tuple(cells))
    header = ("Data", "Model", "Temperature", "LL", "LL scaled", "ECE", "ECE scaled", "Conformal coverage", "Set size")
    note = "Fitted on examples that training held out, or on a random half of the test set; conformal sets at the first level."
    return Table("calibration", "What held-out data can repair", header, tuple(lines), note=note)


def regression_table(rows: Rows, published: Published) -> Table:
    """Regression: fit, likelihood, coverage, and the entropy in the interval without data."""
    lines = []
    for data in rows.data_sets("regression"):
        for variant in rows.variants("regression", data):
            cells = [data_title(data), variant.title]
            cells += [_ours(rows.number(variant, "regression", metric, data), 3) for metric in ("rmse", "nll", "crps")]
            cells.append(_ours(rows.number(variant, "regression", "coverage", data, {"level": 0.95}), 3))
            printed = published.gap_entropies.get(variant.model) if data in ("gap", "synthetic") else None
            cells.append(MISSING if printed is None else f"{printed:.2f}")
            for noise in (False, True):
                cells.append(_ours(rows.number(variant, "regression", "entropy", data, {"noise": noise}), 2))
            error = rows.number(variant, "regression", "rmse", data)
            lines.append((*cells, _seeds(error), *_cost(rows, variant, "regression", data)[:2]))
    header = (
        "Data", "Model", "RMSE", "NLL", "CRPS", "95 % covers", "E, paper", "E, ours", "E with noise",
        "Seeds", "Evaluations", "s / 1000",
    )  # fmt: skip
    return Table(
        "regression",
        "Regression (NLL in nats), and the entropy E in nats where there are no data",
        header,
        tuple(lines),
        note=_SEED_NOTE,
    )


_SEED_NOTE = "Mean ± population standard deviation over seeds; evaluations of the field for one prediction."


def _cases(rows: Rows, protocol: str, published: Published) -> Iterator[tuple[str, Variant]]:
    """Our variants on every data set, and the models that only the paper has."""
    for data in rows.data_sets(protocol):
        ours = rows.variants(protocol, data)
        known = {variant.model for variant in ours}
        theirs = [Variant(model, None) for model in published.models(data) if model not in known]
        for variant in in_order([*ours, *theirs]):
            yield data, variant


def _foreign_cases(rows: Rows, published: Published) -> Iterator[tuple[str, str, Variant]]:
    for data, variant in _cases(rows, "ood", published):
        for other in rows.settings("ood", data, "ood"):
            has_ours = rows.number(variant, "ood", "auroc", data, {"ood": other, "score": "max_probability"}) is not None
            if has_ours or published.detection(data, other, variant.model, "auroc") is not None:
                yield data, other, variant


def _printed(value: Printed | None, digits: int) -> str:
    return MISSING if value is None else f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def _ours(value: Measured | None, digits: int, scale: float = 1.0) -> str:
    return MISSING if value is None else value.text(digits, scale)


def _seeds(value: Measured | None) -> str:
    return MISSING if value is None else str(value.seeds)


def _cost(rows: Rows, variant: Variant, protocol: str, data: str) -> tuple[str, str, str]:
    """Evaluations, seconds per 1,000 examples, largest memory."""
    cost = rows.cost(variant, protocol, data)
    if cost is None:
        return MISSING, MISSING, MISSING
    evaluations = MISSING if cost.evaluations is None else f"{cost.evaluations:.0f}"
    memory = MISSING if cost.peak_memory_bytes is None else f"{cost.peak_memory_bytes / 2**20:.0f} MiB"
    return evaluations, f"{cost.seconds_per_1000:.3g}", memory


def _spread(rows: Rows, variant: Variant, protocol: str, metric: str, data: str) -> str:
    where: Mapping[str, Any] = {"statistic": "std over draws"}
    found = [row for row in rows.where(protocol, metric, data, where) if Variant.of(row) == variant]
    if not found:
        return MISSING
    mean, std = (sum(values) / len(found) for values in ([r.extra["mean"] for r in found], [r.number for r in found]))
    return f"{mean:.4f} ± {std:.4f}"


def model_names(rows: Rows) -> str:
    """The models of the results, in words."""
    return ", ".join(dict.fromkeys(model_title(v.model) for v in in_order(Variant.of(row) for row in rows.all)))
