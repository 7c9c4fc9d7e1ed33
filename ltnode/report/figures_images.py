"""Figures of the image protocols, drawn from results: Figures 3 and 4 of the paper, reliability, corruptions and attacks.

Lines are means over seeds and bands are one population standard deviation. Every model has its own colour and marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ltnode.errors import InputError
from ltnode.report.aggregate import Band, Rows
from ltnode.report.naming import Variant, data_title
from ltnode.report.style import Theme, new_figure, outer_labelled_panels, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.2, 2.6)
"""Width and height of a panel in inches: three panels fill a page."""
_HISTOGRAM_WIDTH = 0.1
"""Width of the entropy bins of the figure in nats; the results have finer bins."""


def figure_3_rotation(theme: Theme, rows: Rows, data: str) -> Figure:
    """Figure 3: log-likelihood, Brier score and ECE under rotation; accuracy and count above a confidence at 45 degrees.

    Args:
        theme: Colours.
        rows: Results of the protocol "rotation".
        data: Name of the data set.
    """
    variants = _variants(rows, "rotation", data)
    figure, panels = _panels_and_legend()
    for axes, metric, title, label in (
        (panels[0], "log_likelihood", "Log-likelihood", "log-likelihood (nats)"),
        (panels[1], "brier", "Brier score", "Brier score (over classes)"),
        (panels[2], "ece", "ECE", "ECE"),
    ):
        _lines(axes, theme, {v: rows.along(v, "rotation", metric, data, "angle") for v in variants}, points=True)
        _rotation_axis(axes)
        axes.set_ylabel(label)
        panel_title(axes, title)
    angle = next((r.setting.get("angle") for r in rows.where("rotation", "confidence_accuracy", data)), 45)
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
    """Figure 4: error under rotation, pooled rejection, entropy on the foreign set, and error under FGSM in both units.

    A panel without results says so.

    Args:
        theme: Colours.
        rows: Results of the protocols "rotation", "ood" and "fgsm".
        data: Name of the data set.
    """
    figure, panels = _panels_and_legend()
    if _has_results(panels[0], theme, rows, "rotation", data):
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
        if _has_results(axes, theme, rows, "fgsm", data):
            variants = rows.variants("fgsm", data)
            errors = {v: rows.along(v, "fgsm", "error", data, "epsilon", units=units) for v in variants}
            _lines(axes, theme, errors, points=True)
            axes.set_xlabel(label)
            axes.set_ylabel("error")
            axes.set_ylim(0, 1)
        panel_title(axes, f"FGSM, {units} units")
    _legend(panels[5], *panels[:5])
    return figure


def figure_reliability(theme: Theme, rows: Rows, data: str) -> Figure:
    """Reliability diagram of every model: accuracy against confidence in ten bins, with the share of predictions in each."""
    variants = _variants(rows, "clean", data)
    size = (3 * _PANEL[0], _PANEL[1] * -(-len(variants) // 3) + 0.1)
    figure, panels = outer_labelled_panels(len(variants), min(3, len(variants)), size, "confidence", "accuracy")
    for axes, variant in zip(panels, variants, strict=True):
        _reliability_panel(axes, theme, rows, data, variant)
    return figure


def figure_corruptions(theme: Theme, rows: Rows, data: str) -> Figure:
    """Error against severity, one panel per corruption."""
    variants = _variants(rows, "corruption", data)
    names = rows.settings("corruption", data, "corruption")
    figure, panels = _panels_and_legend(len(names))
    for axes, name in zip(panels, names, strict=False):
        errors = {v: rows.along(v, "corruption", "error", data, "severity", corruption=name) for v in variants}
        _lines(axes, theme, errors, points=True)
        axes.set_xlabel("severity")
        axes.set_ylabel("error")
        axes.set_xticks(sorted(rows.settings("corruption", data, "severity")))
        panel_title(axes, name.replace("-", " ").capitalize().replace("Jpeg", "JPEG"))
    _legend(panels[len(names)], panels[0])
    return figure


def figure_attacks(theme: Theme, rows: Rows, data: str) -> Figure:
    """Error and entropy under PGD, compared with FGSM of the same strength (dotted lines, hollow markers)."""
    variants = _variants(rows, "pgd", data)
    figure = new_figure(3 * _PANEL[0], _PANEL[1] + 0.1)
    panels = list(figure.subplots(1, 3))
    for axes, metric, label in ((panels[0], "error", "error"), (panels[1], "mean_entropy", "mean entropy (nats)")):
        bands = {
            attack: {v: rows.along(v, attack, metric, data, "epsilon", units="normalised") for v in variants}
            for attack in ("pgd", "fgsm")
        }
        _lines(axes, theme, bands["pgd"], points=True)
        for variant, band in bands["fgsm"].items():
            if band is not None:
                colour = theme.of_model(variant.model)
                axes.plot(band.x, band.mean, color=colour, lw=1, ls=":", marker=variant.marker, ms=4, mfc="none")
        axes.set_xlabel("epsilon (normalised units)")
        axes.set_ylabel(label)
        panel_title(axes, f"{label.split(' (')[0].capitalize()} under PGD", "dotted: FGSM" if metric == "error" else "")
    _legend(panels[2], panels[0])
    return figure


def _panels_and_legend(used: int = 5) -> tuple[Figure, list[Axes]]:
    """Create a figure with three panels per row; the panel after the used ones is for the legend."""
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
    """Draw mean and band of every variant, with markers at every point or only at a few points of a fine curve."""
    for variant, band in bands.items():
        if band is None:
            continue
        colour, mean, std = theme.of_model(variant.model), scale * band.mean, scale * band.std
        axes.fill_between(band.x, mean - std, mean + std, color=colour, alpha=0.18, lw=0)
        every = None if points else (0.05, 0.2)
        look: dict[str, Any] = {"color": colour, "ls": variant.dashes, "marker": variant.marker, "ms": 4, "markevery": every}
        axes.plot(band.x, mean, label=variant.title, **look)


def _rotation_axis(axes: Axes) -> None:
    axes.set_xlabel("rotation (degrees)")
    axes.set_xticks(range(0, 181, 45))


def _has_results(axes: Axes, theme: Theme, rows: Rows, protocol: str, data: str) -> bool:
    """Whether a panel can be drawn; if not, the panel says so."""
    if rows.where(protocol, data=data):
        return True
    text = f"protocol {protocol} not evaluated"
    axes.text(0.5, 0.5, text, ha="center", va="center", color=theme.faint, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    return False


def _foreign_panels(rejection: Axes, histogram: Axes, theme: Theme, rows: Rows, data: str) -> None:
    """Draw pooled rejection, and entropies on the foreign set."""
    foreign = next(iter(rows.settings("ood", data, "ood")), None)
    panel_title(rejection, "Rejection", "" if foreign is None else f"against {data_title(foreign)}")
    panel_title(histogram, "Entropy", "" if foreign is None else f"on {data_title(foreign)}")
    there = [_has_results(axes, theme, rows, "ood", data) for axes in (rejection, histogram)]
    if not all(there):
        return
    variants = rows.variants("ood", data)
    _lines(rejection, theme, {v: rows.curve(v, "ood", "rejection_accuracy", data, ood=foreign) for v in variants})
    rejection.set_xlabel("rejected share of the pooled data")
    rejection.set_ylabel("accuracy of the rest")
    rejection.set_xlim(0, 1)
    shares = {v: rows.histogram(v, "ood", "entropy_histogram", data, _HISTOGRAM_WIDTH, ood=foreign, part="out") for v in variants}
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
    width = float(accuracy.x[1] - accuracy.x[0])
    axes.bar(count.x + width / 2, count.mean / count.mean.sum(), width=0.9 * width, color=theme.shade, lw=0)
    axes.plot([0, 1], [0, 1], color=theme.faint, lw=1, ls=(0, (4, 3)))
    look: dict[str, Any] = {"color": theme.of_model(variant.model), "marker": variant.marker, "ms": 4.5, "lw": 1.4, "capsize": 2}
    look["clip_on"] = False  # a marker at a confidence of 1 stays whole
    axes.errorbar(confidence.mean, accuracy.mean, yerr=accuracy.std, **look)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    ece = rows.number(variant, "clean", "ece", data)
    panel_title(axes, variant.title, "" if ece is None else f"ECE {ece.mean:.3f}")


def _legend(place: Axes, *sources: Axes) -> None:
    """Draw one legend for all panels, in a panel without axes."""
    found: dict[str, Any] = {}
    for axes in sources:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    place.set_axis_off()
    place.legend(list(found.values()), list(found), loc="center left", fontsize=9.5, handlelength=2.6, labelspacing=0.8)
