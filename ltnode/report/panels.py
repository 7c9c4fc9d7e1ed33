"""Panels that several figures of the image protocols share; lines are means over seeds, bands one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ltnode.report.aggregate import Band, Rows
from ltnode.report.naming import Variant
from ltnode.report.style import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HISTOGRAM_WIDTH = 0.1
"""Width of the entropy bins of a figure in nats; the results have finer bins."""


def lines(axes: Axes, theme: Theme, bands: Mapping[Variant, Band | None], *, points: bool = False, scale: float = 1.0) -> None:
    """Draw mean and band of every variant, with markers at every point or only at a few points of a fine curve."""
    for variant, band in bands.items():
        if band is None:
            continue
        colour, mean, std = theme.of_model(variant.model), scale * band.mean, scale * band.std
        axes.fill_between(band.x, mean - std, mean + std, color=colour, alpha=0.18, lw=0)
        every = None if points else (0.05, 0.2)
        look: dict[str, Any] = {"color": colour, "ls": variant.dashes, "marker": variant.marker, "ms": 4, "markevery": every}
        axes.plot(band.x, mean, label=variant.title, **look)


def rotation_axis(axes: Axes) -> None:
    """Label an axis of angles."""
    axes.set_xlabel("rotation (degrees)")
    axes.set_xticks(range(0, 181, 45))


def has_results(axes: Axes, theme: Theme, rows: Rows, protocol: str, data: str) -> bool:
    """Whether a panel can be drawn; if not, the panel says so."""
    if rows.where(protocol, data=data):
        return True
    text = f"protocol {protocol} not evaluated"
    axes.text(0.5, 0.5, text, ha="center", va="center", color=theme.faint, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    return False


def error_under_rotation(axes: Axes, theme: Theme, rows: Rows, data: str) -> None:
    """Draw the error against the angle."""
    if has_results(axes, theme, rows, "rotation", data):
        errors = {v: rows.along(v, "rotation", "error", data, "angle") for v in rows.variants("rotation", data)}
        lines(axes, theme, errors, points=True)
        rotation_axis(axes)
        axes.set_ylabel("error")


def error_under_attack(axes: Axes, theme: Theme, rows: Rows, data: str, units: str, label: str) -> None:
    """Draw the error against the strength of FGSM in some units."""
    if has_results(axes, theme, rows, "fgsm", data):
        variants = rows.variants("fgsm", data)
        errors = {v: rows.along(v, "fgsm", "error", data, "epsilon", units=units) for v in variants}
        lines(axes, theme, errors, points=True)
        axes.set_xlabel(label)
        axes.set_ylabel("error")
        axes.set_ylim(0, 1)


def rejection(axes: Axes, theme: Theme, rows: Rows, data: str, foreign: str | None) -> None:
    """Draw the accuracy on what is left of the test set pooled with a foreign one."""
    if has_results(axes, theme, rows, "ood", data):
        variants = rows.variants("ood", data)
        lines(axes, theme, {v: rows.curve(v, "ood", "rejection_accuracy", data, ood=foreign) for v in variants})
        axes.set_xlabel("rejected share of the pooled data")
        axes.set_ylabel("accuracy of the rest")
        axes.set_xlim(0, 1)


def entropy_on_foreign(axes: Axes, theme: Theme, rows: Rows, data: str, foreign: str | None) -> None:
    """Draw histograms of the entropy on a foreign set."""
    if has_results(axes, theme, rows, "ood", data):
        shares = {
            v: rows.histogram(v, "ood", "entropy_histogram", data, _HISTOGRAM_WIDTH, ood=foreign, part="out")
            for v in rows.variants("ood", data)
        }
        lines(axes, theme, shares)
        axes.set_xlabel("entropy (nats)")
        axes.set_ylabel(f"share per {_HISTOGRAM_WIDTH:g} nats")
        axes.set_ylim(0, None)
        filled = [float(band.x[band.mean > 0].max()) for band in shares.values() if band is not None]
        axes.set_xlim(0, max(filled) + _HISTOGRAM_WIDTH)


def found_labels(*sources: Axes) -> dict[str, Any]:
    """The drawn lines of panels by label, each label once."""
    found: dict[str, Any] = {}
    for axes in sources:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    return found


def legend(place: Axes, *sources: Axes) -> None:
    """Draw one legend for all panels, in a panel without axes."""
    found = found_labels(*sources)
    place.set_axis_off()
    place.legend(list(found.values()), list(found), loc="center left", fontsize=9.5, handlelength=2.6, labelspacing=0.8)
