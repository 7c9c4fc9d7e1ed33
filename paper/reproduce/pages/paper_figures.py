"""Figures 2 to 4 of the paper in its own layout: the same panels in the same places, drawn from our results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ltnode.data import gap_data
from ltnode.report.aggregate import Band, Rows
from ltnode.report.figures_1d import Curve, prediction_figure
from ltnode.report.gap import REGIONS, truth
from ltnode.report.naming import Variant, data_title, model_title
from ltnode.report.panels import (
    entropy_on_foreign,
    error_under_attack,
    error_under_rotation,
    found_labels,
    has_results,
    lines,
    rejection,
    rotation_axis,
)
from ltnode.report.style import Theme, new_figure, panel_title
from paper.reproduce.claims.numbers import FOREIGN
from paper.reproduce.images.results import ImageResult
from paper.reproduce.one_dimensional.experiment import POINTS
from paper.reproduce.published import PaperValues

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIGURE_2 = ("lt-node", "alt-node", "sde-net", "node-gp", "uni-node")
"""Panels of Figure 2 in the paper's order."""
_PANEL = (2.75, 2.35)
_ATTACKS = {"cifar10": ("mnist", "fashion-mnist"), "svhn": ("cifar10", "svhn")}
"""The sets under attack in the two rows of Figure 4."""


def paper_rows(results: Sequence[ImageResult]) -> Rows:
    """The rows of the paper's preset, drawn like those of a report's default preset: with solid lines and plain names."""
    chosen = [result for result in results if result.preset == "paper" and not result.variant]
    return Rows(dataclasses.replace(row, preset="default") for result in chosen for row in result.rows())


def figure_2(theme: Theme, results: Sequence[Mapping[str, Any]], published: PaperValues) -> Figure:
    """Figure 2: the predictions of five models on the 1-D data, with E in the gap, ours and the paper's."""
    data, first = gap_data(POINTS), {str(r["variant"]): r for r in sorted(results, key=lambda r: -int(r["seed"]))}
    curves = []
    for model in _FIGURE_2:
        if model in first:
            r = first[model]
            x, mean, std = (torch.tensor(r["curve"][key]) for key in ("x", "mean", "std"))
            detail = f"E = {r['entropy']['model']['mean']:.2f} (paper {published.gap_entropies[model]:.2f})"
            curves.append(Curve(model, model_title(model), x, mean, std, detail))
    points = (data.train.x[:, 0], data.train.y)
    return prediction_figure(theme, curves, points, regions=REGIONS, truth=truth(curves[0].x[:, None]))


def figure_3(theme: Theme, rows: Rows) -> Figure:
    """Figure 3: under rotation, likelihood, Brier score and ECE, then accuracy and count above a confidence at 45 degrees."""
    figure, panels = _two_rows()
    for row, data in zip(panels, FOREIGN, strict=True):
        for axes, metric, title in zip(row, ("log_likelihood", "brier", "ece"), ("LL", "Brier", "ECE"), strict=False):
            panel_title(axes, f"{title} ({data_title(data)})")
            if has_results(axes, theme, rows, "rotation", data):
                lines(axes, theme, _along(rows, metric, data), points=True)
                rotation_axis(axes)
        for axes, metric, title, scale in (
            (row[3], "confidence_accuracy", "Accuracy (%)", 100.0),
            (row[4], "confidence_count", "Count (1000)", 1e-3),
        ):
            panel_title(axes, f"{title} (rotated)")
            if has_results(axes, theme, rows, "rotation", data):
                variants = rows.variants("rotation", data)
                lines(axes, theme, {v: rows.curve(v, "rotation", metric, data) for v in variants}, scale=scale)
                axes.set_xlabel("confidence threshold τ")
                axes.set_xlim(0, 1)
    _common_legend(figure, panels)
    return figure


def figure_4(theme: Theme, rows: Rows) -> Figure:
    """Figure 4: error under rotation, rejection, entropy on the foreign set, and the error under FGSM on four sets."""
    figure, panels = _two_rows()
    for row, (data, other) in zip(panels, FOREIGN.items(), strict=True):
        error_under_rotation(row[0], theme, rows, data)
        panel_title(row[0], f"Error ({data_title(data)})")
        rejection(row[1], theme, rows, data, other)
        panel_title(row[1], f"{data_title(data)}-{data_title(other)} rejection")
        entropy_on_foreign(row[2], theme, rows, data, other)
        panel_title(row[2], f"{data_title(data)}-{data_title(other)} entropy")
        for axes, attacked in zip(row[3:], _ATTACKS[data], strict=True):
            error_under_attack(axes, theme, rows, attacked, "normalised", "ε of FGSM")
            panel_title(axes, f"Attack ({data_title(attacked)})")
    _common_legend(figure, panels)
    return figure


def _along(rows: Rows, metric: str, data: str) -> dict[Variant, Band | None]:
    return {v: rows.along(v, "rotation", metric, data, "angle") for v in rows.variants("rotation", data)}


def _two_rows() -> tuple[Figure, list[list[Axes]]]:
    figure = new_figure(5 * _PANEL[0], 2 * _PANEL[1] + 0.4)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.06)
    return figure, [list(row) for row in figure.subplots(2, 5)]


def _common_legend(figure: Figure, panels: Sequence[Sequence[Axes]]) -> None:
    found = found_labels(*(axes for row in panels for axes in row))
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=len(found), fontsize=10)
