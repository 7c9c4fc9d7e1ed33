"""Figures for models with one-dimensional inputs: what each model predicts, and which end-times it has learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ltnode.errors import InputError
from ltnode.report.style import Theme, new_figure, outer_labelled_panels, panel_title
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BANDS = ((2.0, 0.18), (1.0, 0.32))  # standard deviations, opacity
_DASHES = (0, (4, 3))
_LIMITS = (-2.4, 2.4)  # of the targets
_VISIBLE = 0.995
"""Share of the values of a density that its axis must show: a density that is infinite at 0 must not flatten the rest."""


@dataclass(frozen=True)
class Curve:
    """Predictions of a regression model along a line.

    Attributes:
        model: Name of the model, which decides the colour.
        title: Title of the panel.
        x: Inputs in ascending order.
        mean: Predictive mean.
        std: Standard deviation.
        detail: A few words or numbers next to the title.
    """

    model: str
    title: str
    x: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]
    detail: str = ""


@dataclass(frozen=True)
class Outline:
    """A band for comparison, drawn by thin lines in every panel: label, and mean and standard deviation at the same inputs."""

    label: str
    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]


@dataclass(frozen=True)
class Posterior:
    """Densities of the end-time of one model.

    Attributes:
        model: Name of the model, which decides the colour.
        title: Title of the panel.
        t: Times in ascending order.
        prior: Density p(T).
        densities: Densities q(T) by label; the first is emphasised.
        window: The times that training covers.
        detail: A few words or numbers next to the title.
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
        model: Name of the model, which decides the colour.
        title: Title of the panel.
        x: Inputs in ascending order.
        quantiles: The 5, 25, 50, 75 and 95 % quantiles of q(T | x).
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
    outline: Outline | None = None,
    spread: str = "std over end-times",
) -> Figure:
    """Draw one panel per model: mean, bands of one and two standard deviations, and the data.

    Args:
        theme: Colours.
        curves: Predictions, one per panel.
        points: Training inputs and targets.
        regions: Intervals with data, which are shaded.
        truth: Noiseless targets at the inputs of the first curve.
        outline: A band for comparison, at the inputs of the first curve.
        spread: What the standard deviation of the curves is, for the legend.
    """
    if not curves:
        raise InputError("a figure of predictions needs at least one curve")
    columns = 1 if len(curves) == 1 else 2 if len(curves) in (2, 4) else 3
    size = (4.6 * columns, 2.75 * -(-len(curves) // columns) + 0.3)
    figure, panels = outer_labelled_panels(len(curves), columns, size, "x", "y")
    for axes, curve in zip(panels, curves, strict=True):
        _prediction_panel(axes, theme, curve, points, regions, truth if truth is None else (curves[0].x, truth))
        if outline is not None:
            for sign in (-1, 1):
                edge = outline.mean + sign * _BANDS[0][0] * outline.std
                axes.plot(curves[0].x.numpy(), edge.numpy(), color=theme.text, lw=0.7, alpha=0.7)
    _prediction_legend(figure, theme, spread, truth is not None, outline)
    return figure


def _prediction_legend(figure: Figure, theme: Theme, spread: str, with_truth: bool, outline: Outline | None) -> None:
    """Draw one legend for all panels, in a neutral colour."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Line2D([], [], color=theme.text, label="mean")]
    for width, opacity in reversed(_BANDS):
        # The wider band lies below the narrower one and makes it darker.
        shown = opacity if width == _BANDS[0][0] else opacity + _BANDS[0][1]
        handles.append(Patch(facecolor=theme.text, alpha=shown, lw=0, label=f"±{width:g} {spread}"))
    if with_truth:
        handles.append(Line2D([], [], color=theme.faint, lw=1.1, ls=_DASHES, label="function behind the data"))
    if outline is not None:
        handles.append(Line2D([], [], color=theme.text, lw=0.7, alpha=0.7, label=outline.label))
    handles.append(Line2D([], [], color=theme.point, marker=".", ms=5, mew=0, lw=0, label="training data"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) if len(handles) < 6 else 3, columnspacing=1.6)


def _prediction_panel(
    axes: Axes,
    theme: Theme,
    curve: Curve,
    points: tuple[Tensor, Tensor],
    regions: Sequence[tuple[float, float]],
    truth: tuple[Tensor, Tensor] | None,
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
    axes.set_ylim(*_LIMITS)
    axes.set_xlim(_rounded(curve.x[0]), _rounded(curve.x[-1]))
    axes.locator_params(axis="x", nbins=5)
    panel_title(axes, curve.title, curve.detail)


def _rounded(end: Tensor) -> float:
    """End of an axis: a grid that stops one step before 2 is shown up to 2."""
    return round(float(end), 1)


def posterior_figure(
    theme: Theme, posteriors: Sequence[Posterior], along: Sequence[TimesAlongInput] = (), width: float = 0.0
) -> Figure:
    """Draw learnt end-times: q(T) with the prior p(T), and T against the input. The figure is at least ``width`` inches wide."""
    count = len(posteriors) + len(along)
    if not count:
        raise InputError("a figure of posteriors needs at least one posterior")
    figure = new_figure(max(width, 4.1 * count), 3.0)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes, posterior in zip(panels, posteriors, strict=False):
        posterior_panel(axes, theme, posterior)
    for axes, times in zip(panels[len(posteriors) :], along, strict=True):
        _times_panel(axes, theme, times)
    return figure


def posterior_panel(axes: Axes, theme: Theme, posterior: Posterior) -> None:
    """Draw the densities q(T) and p(T) of one model."""
    t = posterior.t.numpy()
    axes.plot(t, posterior.prior.numpy(), color=theme.faint, ls=_DASHES, label="prior p(T)")
    colour = theme.of_model(posterior.model)
    styles = ("-", (0, (1, 1.4)), "-.")
    for order, (label, density) in enumerate(posterior.densities.items()):
        axes.plot(t, density.numpy(), color=colour, ls=styles[order % len(styles)], label=label)
        if order == 0:
            axes.fill_between(t, 0, density.numpy(), color=colour, alpha=0.16, lw=0)
    if posterior.window[1] < t[-1] * _VISIBLE:
        axes.axvspan(*posterior.window, color=theme.shade, lw=0, zorder=0, label="training window")
    heights = torch.cat([posterior.prior, *posterior.densities.values()])
    axes.set_ylim(0, 1.25 * float(heights[torch.isfinite(heights)].quantile(_VISIBLE)))
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
