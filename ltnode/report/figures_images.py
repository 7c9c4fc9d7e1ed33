"""Figures 3 and 4 of the paper, and what practitioners ask for beside them, from rows of results.

Lines are means over seeds, bands one population standard deviation; every model has its colour and its marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ltnode.errors import InputError
from ltnode.report.aggregate import Band, Rows
from ltnode.report.naming import METRIC_TITLES, Variant, data_title
from ltnode.report.style import Theme, new_figure, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.2, 2.6)
"""Width and height of a panel in inches: three of them fill a page."""
_HISTOGRAM_WIDTH = 0.1
"""Entropy bins of the figure in nats; the rows have finer ones."""


def figure_3_rotation(theme: Theme, rows: Rows, data: str) -> Figure:
    """Figure 3: log-likelihood, Brier score and ECE under rotation; accuracy and count above a confidence at 45 degrees.

    Args:
        theme: Colours.
        rows: Results of the protocol "rotation".
        data: The data set.
    """
    variants = _variants(rows, "rotation", data)
    figure, panels = _six_panels()
    for axes, metric in zip(panels, ("log_likelihood", "brier", "ece"), strict=False):
        _lines(axes, theme, {v: rows.along(v, "rotation", metric, data, "angle") for v in variants}, points=True)
        _rotation_axis(axes)
        axes.set_ylabel(METRIC_TITLES[metric])
        title = METRIC_TITLES[metric].split(" (")[0]
        panel_title(axes, title[0].upper() + title[1:])
    angle = next((r.setting["angle"] for r in rows.where("rotation", "confidence_accuracy", data)), 45)
    for axes, metric, label, scale in (
        (panels[3], "confidence_accuracy", "accuracy (%)", 100.0),
        (panels[4], "confidence_count", "count (1000 images)", 1e-3),
    ):
        _lines(axes, theme, {v: rows.curve(v, "rotation", metric, data) for v in variants}, scale=scale)
        axes.set_xlabel("confidence threshold τ")
        axes.set_ylabel(label)
        axes.set_xlim(0, 1)
        panel_title(axes, f"{label.split(' (')[0].capitalize()} above τ", f"at {angle}°")
    _legend(panels[5], panels[0])
    return figure


def figure_4_shift_and_attack(theme: Theme, rows: Rows, data: str) -> Figure:
    """Figure 4: error under rotation, pooled rejection, entropy on the foreign set, error under FGSM in both units.

    Panels of protocols that were not done say so.

    Args:
        theme: Colours.
        rows: Results of the protocols "rotation", "ood" and "fgsm".
        data: The data set.
    """
    figure, panels = _six_panels()
    if _panel_is_there(panels[0], theme, rows, "rotation", data):
        errors = {v: rows.along(v, "rotation", "error", data, "angle") for v in rows.variants("rotation", data)}
        _lines(panels[0], theme, errors, points=True)
        _rotation_axis(panels[0])
        panels[0].set_ylabel("error")
    panel_title(panels[0], "Error under rotation")
    _foreign_panels(panels[1], panels[2], theme, rows, data)
    for axes, units, label in (
        (panels[3], "normalised", "epsilon (normalised units)"),
        (panels[4], "pixel", "epsilon (share of the pixel range)"),
    ):
        if _panel_is_there(axes, theme, rows, "fgsm", data):
            setting = {"units": units}
            errors = {v: rows.along(v, "fgsm", "error", data, "epsilon", setting) for v in rows.variants("fgsm", data)}
            _lines(axes, theme, errors, points=True)
            axes.set_xlabel(label)
            axes.set_ylabel("error")
            axes.set_ylim(0, 1)
        panel_title(axes, f"FGSM, {units} units")
    _legend(panels[5], *panels[:5])
    return figure


def figure_reliability(theme: Theme, rows: Rows, data: str) -> Figure:
    """Reliability diagram per model: accuracy against confidence in ten bins, with the share of predictions in each."""
    variants = _variants(rows, "clean", data)
    columns = 3
    lines = -(-len(variants) // columns)
    figure = new_figure(3 * _PANEL[0], _PANEL[1] * lines + 0.1)
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in list(grid.flat)[len(variants) :]:
        axes.set_visible(False)
    for axes, variant in zip(grid.flat, variants, strict=False):
        _reliability_panel(axes, theme, rows, data, variant)
    for column in range(min(columns, len(variants))):
        last = max(row for row in range(lines) if row * columns + column < len(variants))
        grid[last, column].set_xlabel("confidence")
        grid[last, column].tick_params(labelbottom=True)
    for row in range(lines):
        grid[row, 0].set_ylabel("accuracy")
    return figure


def figure_corruptions(theme: Theme, rows: Rows, data: str) -> Figure:
    """Error against severity under every corruption."""
    variants = _variants(rows, "corruption", data)
    names = rows.settings("corruption", data, "corruption")
    figure, panels = _six_panels(len(names))
    for axes, name in zip(panels, names, strict=False):
        setting = {"corruption": name}
        errors = {v: rows.along(v, "corruption", "error", data, "severity", setting) for v in variants}
        _lines(axes, theme, errors, points=True)
        axes.set_xlabel("severity")
        axes.set_ylabel("error")
        axes.set_xticks(sorted(rows.settings("corruption", data, "severity")))
        panel_title(axes, name.replace("-", " ").capitalize().replace("Jpeg", "JPEG"))
    _legend(panels[len(names)], panels[0])
    return figure


def figure_attacks(theme: Theme, rows: Rows, data: str) -> Figure:
    """Error and entropy under PGD, beside FGSM of the same strength (dotted, hollow points)."""
    variants = _variants(rows, "pgd", data)
    figure = new_figure(3 * _PANEL[0], _PANEL[1] + 0.1)
    panels = list(figure.subplots(1, 3))
    setting = {"units": "normalised"}
    for axes, metric, label in ((panels[0], "error", "error"), (panels[1], "mean_entropy", "mean entropy (nats)")):
        _lines(axes, theme, {v: rows.along(v, "pgd", metric, data, "epsilon", setting) for v in variants}, points=True)
        for variant in variants:
            single = rows.along(variant, "fgsm", metric, data, "epsilon", setting)
            if single is not None:
                colour = theme.of_model(variant.model)
                axes.plot(single.x, single.mean, color=colour, lw=1, ls=":", marker=variant.marker, ms=4, mfc="none")
        axes.set_xlabel("epsilon (normalised units)")
        axes.set_ylabel(label)
        panel_title(axes, f"{label.split(' (')[0].capitalize()} under PGD", "dotted: FGSM" if metric == "error" else "")
    _legend(panels[2], panels[0])
    return figure


def _six_panels(used: int = 5) -> tuple[Figure, list[Axes]]:
    """Panels in lines of three, one more than used: the last is for the legend."""
    lines = -(-(used + 1) // 3)
    figure = new_figure(3 * _PANEL[0], lines * _PANEL[1])
    figure.set_layout_engine("constrained", h_pad=0.12)
    panels = list(figure.subplots(lines, 3, squeeze=False).flat)
    for axes in panels[used:]:
        axes.set_axis_off()
    return figure, panels


def _variants(rows: Rows, protocol: str, data: str) -> list[Variant]:
    found = rows.variants(protocol, data)
    if not found:
        raise InputError(f"there are no results of the protocol {protocol!r} on {data}: run `ltnode evaluate` first")
    return found


def _lines(axes: Axes, theme: Theme, bands: Mapping[Variant, Band | None], *, points: bool = False, scale: float = 1.0) -> None:
    """Mean and band of every variant; markers at every point, or only a few along a fine curve."""
    for variant, band in bands.items():
        if band is None:
            continue
        colour, mean, std = theme.of_model(variant.model), scale * band.mean, scale * band.std
        axes.fill_between(band.x, mean - std, mean + std, color=colour, alpha=0.18, lw=0)
        axes.plot(
            band.x,
            mean,
            color=colour,
            ls=variant.dashes,
            label=variant.title,
            marker=variant.marker,
            ms=4,
            markevery=None if points else (0.05, 0.2),
        )


def _rotation_axis(axes: Axes) -> None:
    axes.set_xlabel("rotation (degrees)")
    axes.set_xticks(range(0, 181, 45))


def _panel_is_there(axes: Axes, theme: Theme, rows: Rows, protocol: str, data: str) -> bool:
    if rows.where(protocol, data=data):
        return True
    axes.text(0.5, 0.5, f"protocol {protocol} not done", ha="center", va="center", color=theme.faint, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    return False


def _foreign_panels(rejection: Axes, histogram: Axes, theme: Theme, rows: Rows, data: str) -> None:
    """Pooled rejection, and entropies on the foreign set."""
    foreign = next(iter(rows.settings("ood", data, "ood")), None)
    detail = "" if foreign is None else f"against {data_title(foreign)}"
    panel_title(rejection, "Rejection", detail)
    panel_title(histogram, "Entropy", "" if foreign is None else f"on {data_title(foreign)}")
    there = [_panel_is_there(axes, theme, rows, "ood", data) for axes in (rejection, histogram)]
    if not all(there):
        return
    variants, where = rows.variants("ood", data), {"ood": foreign}
    _lines(rejection, theme, {v: rows.curve(v, "ood", "rejection_accuracy", data, where) for v in variants})
    rejection.set_xlabel("rejected share of the pooled data")
    rejection.set_ylabel("accuracy of the rest")
    rejection.set_xlim(0, 1)
    outside = {**where, "part": "out"}
    shares = {v: rows.histogram(v, "ood", "entropy_histogram", data, _HISTOGRAM_WIDTH, outside) for v in variants}
    _lines(histogram, theme, shares)
    histogram.set_xlabel("entropy (nats)")
    histogram.set_ylabel(f"share per {_HISTOGRAM_WIDTH:g} nats")
    histogram.set_ylim(0, None)
    filled = [float(band.x[band.mean > 0].max()) for band in shares.values() if band is not None]
    histogram.set_xlim(0, max(filled) + _HISTOGRAM_WIDTH)


def _reliability_panel(axes: Axes, theme: Theme, rows: Rows, data: str, variant: Variant) -> None:
    accuracy, confidence, count = (
        rows.curve(variant, "clean", f"reliability_{name}", data) for name in ("accuracy", "confidence", "count")
    )
    assert accuracy is not None and confidence is not None and count is not None
    colour = theme.of_model(variant.model)
    width = float(accuracy.x[1] - accuracy.x[0])
    axes.bar(count.x + width / 2, count.mean / count.mean.sum(), width=0.9 * width, color=theme.shade, lw=0)
    axes.plot([0, 1], [0, 1], color=theme.faint, lw=1, ls=(0, (4, 3)))
    axes.errorbar(
        confidence.mean, accuracy.mean, yerr=accuracy.std, color=colour, marker=variant.marker, ms=4.5, lw=1.4, capsize=2
    )  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    ece = rows.number(variant, "clean", "ece", data)
    panel_title(axes, variant.title, "" if ece is None else f"ECE {ece.mean:.3f}")


def _legend(place: Axes, *sources: Axes) -> None:
    """One legend for all panels, in a place of its own."""
    found: dict[str, Any] = {}
    for axes in sources:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    place.set_axis_off()
    place.legend(list(found.values()), list(found), loc="center left", fontsize=9.5, handlelength=2.6, labelspacing=0.8)
