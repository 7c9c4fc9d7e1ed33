"""Figures for models with one-dimensional inputs: what each model predicts, and which end-times it has learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ltnode.errors import InputError
from ltnode.report.style import Theme, new_figure, panel_title
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BANDS = ((2.0, 0.18), (1.0, 0.32))  # standard deviations, opacity
_DASHES = (0, (4, 3))
_SEEN = 0.995
"""Share of a density's values that its axis must hold: one that is infinite at 0 must not flatten the rest."""


@dataclass(frozen=True)
class Curve:
    """What a regression model predicts along a line.

    Attributes:
        model: Its name, which decides its colour.
        title: What the panel is called.
        x: (n,) inputs, ascending.
        mean: (n,) predictive mean.
        std: (n,) standard deviation of the members; observation noise is not in it.
        detail: A few words or numbers beside the title.
    """

    model: str
    title: str
    x: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]
    detail: str = ""


@dataclass(frozen=True)
class Posterior:
    """Densities over the end-time of one model.

    Attributes:
        model: Its name, which decides its colour.
        title: What the panel is called.
        t: (n,) times, ascending.
        prior: (n,) density of p(T).
        densities: Label and (n,) density of each q to show; the first is drawn strongest.
        window: The times that training covers.
        detail: A few words or numbers beside the title.
    """

    model: str
    title: str
    t: Float[Tensor, " n"]
    prior: Float[Tensor, " n"]
    densities: Mapping[str, Float[Tensor, " n"]]
    window: tuple[float, float] = (0.0, 3.0)
    detail: str = ""


@dataclass(frozen=True)
class TimesAlongInput:
    """End-times of a model whose posterior depends on a 1-D input.

    Attributes:
        model: Its name.
        title: What the panel is called.
        x: (n,) inputs, ascending.
        quantiles: (5, n): the 5, 25, 50, 75 and 95 % quantiles of q(T | x).
    """

    model: str
    title: str
    x: Float[Tensor, " n"]
    quantiles: Float[Tensor, "5 n"]


def prediction_figure(
    theme: Theme,
    curves: Sequence[Curve],
    points: tuple[Float[Tensor, " N"], Float[Tensor, " N"]],
    *,
    regions: Sequence[tuple[float, float]] = (),
    truth: Float[Tensor, " n"] | None = None,
    limits: tuple[float, float] = (-2.4, 2.4),
) -> Figure:
    """One panel per model: mean, bands of one and two standard deviations, and the data.

    Args:
        theme: Colours.
        curves: One per panel.
        points: Training inputs and targets.
        regions: Intervals with data, shaded.
        truth: (n,) the function behind the data at the x of the first curve.
        limits: Of the vertical axis.
    """
    if not curves:
        raise InputError("a figure of predictions needs at least one curve")
    columns = 1 if len(curves) == 1 else 2 if len(curves) in (2, 4) else 3
    rows = -(-len(curves) // columns)
    figure = new_figure(4.6 * columns, 2.75 * rows + 0.3)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes, curve in zip(panels, curves, strict=False):
        _prediction_panel(axes, theme, curve, points, regions, truth if truth is None else (curves[0].x, truth), limits)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for column in range(columns):
        shown = [row for row in range(rows) if row * columns + column < len(curves)]
        grid[shown[-1], column].set_xlabel("x")
        grid[shown[-1], column].tick_params(labelbottom=True)
    for row in range(rows):
        grid[row, 0].set_ylabel("y")
    _prediction_legend(figure, theme, truth is not None)
    return figure


def _prediction_legend(figure: Figure, theme: Theme, with_truth: bool) -> None:
    """One legend for all panels, without the colour of any model."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Line2D([], [], color=theme.text, label="mean")]
    for width, opacity in reversed(_BANDS):
        # The wider band lies under the narrower one, which looks darker by it.
        shown = opacity if width == _BANDS[0][0] else opacity + _BANDS[0][1]
        handles.append(Patch(facecolor=theme.text, alpha=shown, lw=0, label=f"±{width:g} std over end-times"))
    if with_truth:
        handles.append(Line2D([], [], color=theme.faint, lw=1.1, ls=_DASHES, label="function behind the data"))
    handles.append(Line2D([], [], color=theme.point, marker=".", ms=5, mew=0, lw=0, label="training data"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.6)


def _prediction_panel(
    axes: Axes,
    theme: Theme,
    curve: Curve,
    points: tuple[Tensor, Tensor],
    regions: Sequence[tuple[float, float]],
    truth: tuple[Tensor, Tensor] | None,
    limits: tuple[float, float],
) -> None:
    for low, high in regions:
        axes.axvspan(low, high, color=theme.shade, lw=0, zorder=0)
    colour = theme.of_model(curve.model)
    for width, opacity in _BANDS:
        spread = width * curve.std
        below, above = (curve.mean - spread).numpy(), (curve.mean + spread).numpy()
        axes.fill_between(curve.x.numpy(), below, above, color=colour, alpha=opacity, lw=0)
    if truth is not None:
        axes.plot(truth[0].numpy(), truth[1].numpy(), color=theme.faint, lw=1.1, ls=_DASHES)
    axes.plot(points[0].numpy(), points[1].numpy(), ".", ms=2.6, mew=0, color=theme.point, alpha=0.6, rasterized=True)
    axes.plot(curve.x.numpy(), curve.mean.numpy(), color=colour)
    axes.set_ylim(*limits)
    axes.set_xlim(_rounded(curve.x[0]), _rounded(curve.x[-1]))
    axes.locator_params(axis="x", nbins=5)
    panel_title(axes, curve.title, curve.detail)


def _rounded(end: Tensor) -> float:
    """The end of an axis: a grid that stops one step short of 2 is shown up to 2."""
    return round(float(end), 1)


def posterior_figure(theme: Theme, posteriors: Sequence[Posterior], along: Sequence[TimesAlongInput] = ()) -> Figure:
    """Learnt end-times: q(T) beside the prior p(T), and T against the input where it depends on it."""
    count = len(posteriors) + len(along)
    if not count:
        raise InputError("a figure of posteriors needs at least one")
    figure = new_figure(4.1 * count, 3.0)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes, posterior in zip(panels, posteriors, strict=False):
        _posterior_panel(axes, theme, posterior)
    for axes, times in zip(panels[len(posteriors) :], along, strict=True):
        _times_panel(axes, theme, times)
    return figure


def _posterior_panel(axes: Axes, theme: Theme, posterior: Posterior) -> None:
    t = posterior.t.numpy()
    axes.plot(t, posterior.prior.numpy(), color=theme.faint, ls=_DASHES, label="prior p(T)")
    colour = theme.of_model(posterior.model)
    styles = ("-", (0, (1, 1.4)), "-.")
    for order, (label, density) in enumerate(posterior.densities.items()):
        axes.plot(t, density.numpy(), color=colour, ls=styles[order % len(styles)], label=label)
        if order == 0:
            axes.fill_between(t, 0, density.numpy(), color=colour, alpha=0.16, lw=0)
    if posterior.window[1] < t[-1] * _SEEN:
        axes.axvspan(*posterior.window, color=theme.shade, lw=0, zorder=0, label="training window")
    heights = torch.cat([posterior.prior, *posterior.densities.values()])
    axes.set_ylim(0, 1.25 * float(heights[torch.isfinite(heights)].quantile(_SEEN)))
    axes.set_xlim(0, float(t[-1]))
    axes.set_xlabel("end-time T")
    axes.set_ylabel("density")
    axes.legend(loc="best")
    panel_title(axes, posterior.title, posterior.detail)


def _times_panel(axes: Axes, theme: Theme, times: TimesAlongInput) -> None:
    colour, x, q = theme.of_model(times.model), times.x.numpy(), times.quantiles.numpy()
    axes.fill_between(x, q[0], q[4], color=colour, alpha=0.16, lw=0, label="5 to 95 %")
    axes.fill_between(x, q[1], q[3], color=colour, alpha=0.3, lw=0, label="25 to 75 %")
    axes.plot(x, q[2], color=colour, label="median")
    axes.set_xlim(_rounded(times.x[0]), _rounded(times.x[-1]))
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(0, None)
    axes.set_xlabel("x")
    axes.set_ylabel("end-time T")
    axes.legend(loc="best", ncols=3, columnspacing=1.0, handlelength=1.4)
    panel_title(axes, times.title)
