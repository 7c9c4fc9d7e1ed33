"""Figures of the image protocols, drawn from results: Figures 3 and 4 of the paper, reliability, corruptions and attacks.

Lines are means over seeds and bands are one population standard deviation. Every model has its own colour and marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ltnode.errors import InputError
from ltnode.report.aggregate import Rows
from ltnode.report.naming import Variant, data_title
from ltnode.report.panels import (
    entropy_on_foreign,
    error_under_attack,
    error_under_rotation,
    legend,
    lines,
    rejection,
    rotation_axis,
)
from ltnode.report.style import Theme, new_figure, outer_labelled_panels, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.2, 2.6)
"""Width and height of a panel in inches: three panels fill a page."""


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
        lines(axes, theme, {v: rows.along(v, "rotation", metric, data, "angle") for v in variants}, points=True)
        rotation_axis(axes)
        axes.set_ylabel(label)
        panel_title(axes, title)
    angle = next((r.setting.get("angle") for r in rows.where("rotation", "confidence_accuracy", data)), 45)
    for axes, metric, label, scale in (
        (panels[3], "confidence_accuracy", "accuracy (%)", 100.0),
        (panels[4], "confidence_count", "count (1000 images)", 1e-3),
    ):
        lines(axes, theme, {v: rows.curve(v, "rotation", metric, data) for v in variants}, scale=scale)
        axes.set_xlabel("confidence threshold τ")
        axes.set_ylabel(label)
        axes.set_xlim(0, 1)
        panel_title(axes, f"{label.split(' (')[0].capitalize()} above τ", f"at {angle}°")
    legend(panels[5], panels[0])
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
    error_under_rotation(panels[0], theme, rows, data)
    panel_title(panels[0], "Error under rotation")
    foreign = next(iter(rows.settings("ood", data, "ood")), None)
    rejection(panels[1], theme, rows, data, foreign)
    panel_title(panels[1], "Rejection", "" if foreign is None else f"against {data_title(foreign)}")
    entropy_on_foreign(panels[2], theme, rows, data, foreign)
    panel_title(panels[2], "Entropy", "" if foreign is None else f"on {data_title(foreign)}")
    for axes, units, label in (
        (panels[3], "normalised", "epsilon (normalised units)"),
        (panels[4], "pixel", "epsilon (share of the pixel range)"),
    ):
        error_under_attack(axes, theme, rows, data, units, label)
        panel_title(axes, f"FGSM, {units} units")
    legend(panels[5], *panels[:5])
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
        lines(axes, theme, errors, points=True)
        axes.set_xlabel("severity")
        axes.set_ylabel("error")
        axes.set_xticks(sorted(rows.settings("corruption", data, "severity")))
        panel_title(axes, name.replace("-", " ").capitalize().replace("Jpeg", "JPEG"))
    legend(panels[len(names)], panels[0])
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
        lines(axes, theme, bands["pgd"], points=True)
        for variant, band in bands["fgsm"].items():
            if band is not None:
                colour = theme.of_model(variant.model)
                axes.plot(band.x, band.mean, color=colour, lw=1, ls=":", marker=variant.marker, ms=4, mfc="none")
        axes.set_xlabel("epsilon (normalised units)")
        axes.set_ylabel(label)
        panel_title(axes, f"{label.split(' (')[0].capitalize()} under PGD", "dotted: FGSM" if metric == "error" else "")
    legend(panels[2], panels[0])
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
