"""Figures drawn from trained models and their logs: Figure 2 (1-D data), and q(T) during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ltnode import metrics
from ltnode.data import Dataset, gap_grid
from ltnode.errors import InputError
from ltnode.evaluation import EvaluationOptions
from ltnode.evaluation.predict import Predictor
from ltnode.models import Model
from ltnode.report.figures_1d import Curve, prediction_figure
from ltnode.report.gap import in_gap
from ltnode.report.naming import Variant
from ltnode.report.style import Theme, new_figure, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_WIDTH = 9.6
"""Width in inches of a figure that fills a page, so that the text of all figures has the same size."""

Log = Sequence[Mapping[str, Any]]
"""Lines of the training log of one run that contain quantiles of q(T)."""


def figure_2_synthetic(theme: Theme, models: Mapping[Variant, Model], data: Dataset) -> Figure:
    """Figure 2: mean and bands of every model on the 1-D data, with the mean entropy E in the gap (model variance only).

    Args:
        theme: Colours.
        models: Models trained on ``data``.
        data: The 1-D data.
    """
    if data.input_shape != (1,) or data.task != "regression":
        raise InputError(f"Figure 2 is for 1-D regression, but {data.name} has inputs of shape {data.input_shape} ({data.task})")
    grid = gap_grid()
    curves = []
    for variant, model in models.items():
        predictor = Predictor(model, data.prepare, EvaluationOptions().resolved(variant.preset))
        p = predictor.regress(grid)
        entropy = metrics.gaussian_entropy(p.std[in_gap(grid)].square())
        detail = "no spread" if predictor.deterministic else f"E = {entropy:.2f} nats"
        curves.append(Curve(variant.model, variant.title, grid[:, 0], p.mean.cpu().float(), p.std.cpu().float(), detail))
    return prediction_figure(theme, curves, (data.train.x[:, 0].float(), data.train.y.float()))


def figure_posterior_over_training(theme: Theme, logs: Mapping[Variant, Sequence[Log]]) -> Figure:
    """q(T) during training: median, and the range from 5 to 95 %, against the training step.

    Args:
        theme: Colours.
        logs: Training logs, one per seed of each variant.
    """
    rows = -(-len(logs) // 3)
    figure = new_figure(PAGE_WIDTH, 2.8 * rows)
    panels = list(figure.subplots(rows, min(3, len(logs)), squeeze=False).flat)
    for axes in panels[len(logs) :]:
        axes.set_visible(False)
    for axes, (variant, seeds) in zip(panels, logs.items(), strict=False):
        _training_panel(axes, theme, variant, seeds)
    return figure


def _training_panel(axes: Axes, theme: Theme, variant: Variant, logs: Sequence[Log]) -> None:
    colour = theme.of_model(variant.model)
    for order, log in enumerate(logs):
        steps = [line["step"] for line in log]
        low, middle, high = ([line["learnt"][key] for line in log] for key in ("q05", "q50", "q95"))
        band, median = ("5 to 95 %", "median") if order == 0 else (None, None)
        axes.fill_between(steps, low, high, color=colour, alpha=0.14, lw=0, label=band)
        axes.plot(steps, middle, color=colour, lw=1.2, marker="." if len(steps) == 1 else None, label=median)
    axes.set_xlabel("training step")
    axes.set_ylabel("end-time T")
    axes.set_ylim(0, None)
    axes.legend(loc="best")
    panel_title(axes, variant.title, f"{len(logs)} seed{'s' if len(logs) > 1 else ''}")
