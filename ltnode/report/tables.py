"""The tables of a report. Columns with the paper's values appear only if the paper prints values for the reported data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ltnode.checks import is_finite_number
from ltnode.report.aggregate import Measured, Rows
from ltnode.report.naming import Variant, data_title, in_order, model_title
from ltnode.report.published import Published
from ltnode.report.table import MISSING, Table

_SEED_NOTE = "Mean ± population standard deviation over seeds. Evaluations are calls of the field for one prediction."
_DETECTION = {"auroc": "AUROC", "aupr_in": "AUPR In", "aupr_out": "AUPR Out"}
_RATES = ("auroc", "fpr95")
_SCORES = {"p": "max_probability", "H": "entropy", "I": "mutual_information", "d": "distance"}


def generalisation_table(rows: Rows, published: Published) -> Table:
    """Number of parameters and test error."""
    lines = []
    for data, variant in _cases(rows, "clean", published):
        printed = published.value("generalisation", data, variant.model, "parameters")
        parameters, error = (rows.number(variant, "clean", metric, data) for metric in ("parameters", "error"))
        lines.append(
            (
                data_title(data),
                variant.title,
                MISSING if printed is None else f"{printed:.2f} M",
                MISSING if parameters is None else f"{parameters.mean / 1e6:.3f} M",
                _printed(published.value("generalisation", data, variant.model, "error")),
                _ours(error, 4),
                _seeds(error),
                _cost(rows, variant, "clean", data)[0],
            )
        )
    header = ("Data", "Model", "Size, paper", "Size, ours", "Error, paper", "Error, ours", "Seeds", "Evaluations")
    return _table("generalisation", "Parameters and test error", header, lines, _SEED_NOTE)


def quality_table(rows: Rows) -> Table:
    """Proper scores and calibration on the test sets, and the cost of the predictions."""
    metrics = {"LL": "log_likelihood", "Brier": "brier", "ECE": "ece", "AURC": "aurc", "Entropy": "mean_entropy"}
    lines = []
    cases = list(_cases(rows, "clean"))
    if any(rows.number(variant, "clean", "unfamiliar_share", data) for data, variant in cases):
        metrics["Unfamiliar"] = "unfamiliar_share"
    for data, variant in cases:
        numbers = [_ours(rows.number(variant, "clean", metric, data), 3) for metric in metrics.values()]
        lines.append((data_title(data), variant.title, *numbers, *_cost(rows, variant, "clean", data)))
    header = ("Data", "Model", *metrics, "Evaluations", "s / 1000", "Memory")
    title = "Scores (LL and entropy in nats), calibration and cost on the test sets"
    return _table("quality", title, header, lines, _SEED_NOTE)


def ood_table(rows: Rows, published: Published) -> Table:
    """Out-of-distribution detection by the largest probability."""
    lines = []
    for data, other, variant in _foreign_cases(rows, published):
        found = {metric: _detection(rows, variant, metric, data, other) for metric in _DETECTION}
        cells = [f"{data_title(data)} → {data_title(other)}", variant.title]
        for metric, number in found.items():
            cells += [_printed(published.value("ood", data, other, variant.model, metric)), _ours(number, 2, 100.0)]
        lines.append((*cells, _seeds(found["auroc"]), _cost(rows, variant, "ood", data)[0]))
    pairs = (f"{title}, {whose}" for title in _DETECTION.values() for whose in ("paper", "ours"))
    header = ("Data → foreign", "Model", *pairs, "Seeds", "Evaluations")
    title = "Out-of-distribution detection by the largest probability, in percent"
    return _table("ood", title, header, lines, _SEED_NOTE)


def entropy_table(rows: Rows, published: Published) -> Table:
    """Mean entropy on the foreign set and on the test set."""
    lines = []
    for data, other, variant in _foreign_cases(rows, published):
        inside, outside = (rows.number(variant, "ood", "mean_entropy", data, ood=other, part=part) for part in ("in", "out"))
        names = (f"{data_title(data)} → {data_title(other)}", variant.title)
        printed = _printed(published.value("entropy", data, other, variant.model))
        lines.append((*names, printed, _ours(outside, 3), _ours(inside, 3), _seeds(outside)))
    header = ("Data → foreign", "Model", "On foreign data, paper", "On foreign data, ours", "On test data, ours", "Seeds")
    return _table("entropy", "Mean entropy of the predictions, in nats", header, lines)


def scores_table(rows: Rows) -> Table:
    """AUROC and FPR95 of every score that can detect foreign data."""
    cases = list(_foreign_cases(rows))
    with_distance = any(_detection(rows, variant, "auroc", data, other, "distance") for data, other, variant in cases)
    scores = {letter: score for letter, score in _SCORES.items() if with_distance or score != "distance"}
    columns = {f"{metric.upper()}, {letter}": (metric, score) for metric in _RATES for letter, score in scores.items()}
    lines = []
    for data, other, variant in cases:
        found = (_detection(rows, variant, metric, data, other, score) for metric, score in columns.values())
        lines.append((f"{data_title(data)} → {data_title(other)}", variant.title, *(_ours(n, 1, 100.0) for n in found)))
    title = "Detection in percent by the largest probability (p), the entropy (H) and the mutual information (I)"
    note = "The distance (d) is that of the path from those of the training inputs." if with_distance else ""
    return _table("scores", title, ("Data → foreign", "Model", *columns), lines, note)


def draws_table(rows: Rows) -> Table:
    """Influence of a random set of end-times: mean and standard deviation over draws of T, averaged over seeds."""
    columns = {
        "Error": ("clean", "error"), "LL": ("clean", "log_likelihood"), "ECE": ("clean", "ece"),
        "AUROC, foreign": ("ood", "auroc"), "Entropy, foreign": ("ood", "mean_entropy"),
    }  # fmt: skip
    lines = []
    for data, variant in _cases(rows, "clean"):
        cells = [_spread(rows, variant, protocol, metric, data) for protocol, metric in columns.values()]
        if any(cell != MISSING for cell in cells):
            lines.append((data_title(data), variant.title, *cells))
    note = "Mean ± standard deviation over random draws of the end-times with fixed weights, averaged over seeds."
    return _table("draws", "Spread over draws of T", ("Data", "Model", *columns), lines, note)


def posterior_table(rows: Rows) -> Table:
    """The learnt distribution over T."""
    columns = {"α": "alpha", "β": "beta", "Mean of T": "mean", "5 %": "q05", "95 %": "q95", "Tail": "tail"}
    lines = []
    for protocol in ("clean", "regression"):
        for data, variant in _cases(rows, protocol):
            found = {name: rows.number(variant, protocol, f"learnt.{name}", data) for name in columns.values()}
            low, high = found["q05"], found["q95"]
            if low is not None and high is not None and low.mean < high.mean:
                lines.append((data_title(data), variant.title, *(_ours(n, 3) for n in found.values()), _seeds(low)))
    note = "Tail: P(T > end of the training window). For ALT-NODE, all values are averages over test inputs."
    return _table("posteriors", "Learnt posteriors over the end-time", ("Data", "Model", *columns, "Seeds"), lines, note)


def calibration_table(rows: Rows) -> Table:
    """Temperature scaling and conformal sets on held-out data."""
    lines = []
    for data, variant in _cases(rows, "temperature"):
        alpha = next(iter(rows.settings("conformal", data, "alpha")), None)
        pairs = [(metric, scaling) for metric in ("log_likelihood", "ece") for scaling in ("none", "temperature")]
        found = [rows.number(variant, "temperature", metric, data, scaling=scaling) for metric, scaling in pairs]
        found += [rows.number(variant, "conformal", metric, data, alpha=alpha) for metric in ("coverage", "mean_set_size")]
        fitted = _ours(rows.number(variant, "temperature", "temperature", data), 2)
        lines.append((data_title(data), variant.title, fitted, *(_ours(number, 3) for number in found)))
    header = ("Data", "Model", "Temperature", "LL", "LL scaled", "ECE", "ECE scaled", "Conformal coverage", "Set size")
    note = "Fitted on held-out training examples or a random half of the test set; conformal sets have the first level evaluated."
    return _table("calibration", "Calibration with held-out data", header, lines, note)


def regression_table(rows: Rows, published: Published) -> Table:
    """Fit, likelihood and coverage of regression models, and their entropy where there are no data."""
    lines = []
    for data, variant in _cases(rows, "regression"):
        cells = [_ours(rows.number(variant, "regression", metric, data), 3) for metric in ("rmse", "nll", "crps")]
        cells.append(_ours(rows.number(variant, "regression", "coverage", data, level=0.95), 3))
        printed = published.value("synthetic", "entropy", variant.model) if data in ("gap", "synthetic") else None
        cells.append(MISSING if printed is None else f"{printed:.2f}")
        cells += [_ours(rows.number(variant, "regression", "entropy", data, noise=noise), 2) for noise in (False, True)]
        seeds = _seeds(rows.number(variant, "regression", "rmse", data))
        lines.append((data_title(data), variant.title, *cells, seeds, *_cost(rows, variant, "regression", data)[:2]))
    header = (
        "Data", "Model", "RMSE", "NLL", "CRPS", "95 % coverage", "E, paper", "E, ours", "E with noise",
        "Seeds", "Evaluations", "s / 1000",
    )  # fmt: skip
    title = "Regression (NLL in nats), and the entropy E in nats where there are no data"
    return _table("regression", title, header, lines, _SEED_NOTE)


def model_names(rows: Rows) -> str:
    """Titles of all models with results, separated by commas."""
    return ", ".join(dict.fromkeys(model_title(v.model) for v in in_order(Variant.of(row) for row in rows.all)))


def _table(name: str, title: str, header: tuple[str, ...], lines: Sequence[tuple[str, ...]], note: str = "") -> Table:
    """Make a table without empty columns; if no column of the paper is left, the others are not called "ours"."""
    is_paper = [column.endswith(", paper") for column in header]
    kept = [c for c in range(len(header)) if any(line[c] != MISSING for line in lines)]
    has_paper = any(is_paper[c] for c in kept)
    names = tuple(header[c] if has_paper else header[c].removesuffix(", ours") for c in kept)
    return Table(name, title, names, tuple(tuple(line[c] for c in kept) for line in lines), note=note)


def _cases(rows: Rows, protocol: str, published: Published | None = None) -> Iterator[tuple[str, Variant]]:
    """Our variants on every data set, and the models that only the paper has."""
    for data in rows.data_sets(protocol):
        ours = rows.variants(protocol, data)
        known = {variant.model for variant in ours}
        printed = {} if published is None else published.value("generalisation", data) or {}
        theirs = [Variant(model, None) for model in printed if model not in known]
        for variant in in_order([*ours, *theirs]):
            yield data, variant


def _foreign_cases(rows: Rows, published: Published | None = None) -> Iterator[tuple[str, str, Variant]]:
    """Cases with a foreign data set for which we or the paper have a value."""
    for data, variant in _cases(rows, "ood", published):
        for other in rows.settings("ood", data, "ood"):
            theirs = None if published is None else published.value("ood", data, other, variant.model, "auroc")
            if theirs is not None or _detection(rows, variant, "auroc", data, other) is not None:
                yield data, other, variant


def _detection(
    rows: Rows, variant: Variant, metric: str, data: str, other: str, score: str = "max_probability"
) -> Measured | None:
    return rows.number(variant, "ood", metric, data, ood=other, score=score)


def _printed(value: Sequence[float] | None) -> str:
    return MISSING if value is None else f"{value[0]:.3f} ± {value[1]:.3f}"


def _ours(value: Measured | None, digits: int, scale: float = 1.0) -> str:
    return MISSING if value is None else value.text(digits, scale)


def _seeds(value: Measured | None) -> str:
    return MISSING if value is None else str(value.seeds)


def _cost(rows: Rows, variant: Variant, protocol: str, data: str) -> tuple[str, str, str]:
    """Evaluations of the field, seconds per 1,000 examples, and peak memory."""
    cost = rows.cost(variant, protocol, data)
    if cost is None:
        return MISSING, MISSING, MISSING
    evaluations = MISSING if cost.evaluations is None else f"{cost.evaluations:.0f}"
    memory = MISSING if cost.peak_memory_bytes is None else f"{cost.peak_memory_bytes / 2**20:.0f} MiB"
    return evaluations, f"{cost.seconds_per_1000:.3g}", memory


def _spread(rows: Rows, variant: Variant, protocol: str, metric: str, data: str) -> str:
    found = [
        row
        for row in rows.of(variant, protocol, metric, data, statistic="std over draws")
        if is_finite_number(row.value) and is_finite_number(row.extra.get("mean"))
    ]
    if not found:
        return MISSING
    mean, std = (sum(values) / len(found) for values in ([r.extra["mean"] for r in found], [r.number for r in found]))
    return f"{mean:.4f} ± {std:.4f}"
