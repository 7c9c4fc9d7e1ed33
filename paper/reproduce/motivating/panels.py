"""The figure of the motivating tasks: where each model draws its line, how it reflects, when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ltnode.report.style import Theme, new_figure, panel_title
from ltnode.typing import Float, Int, Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PlaneMap:
    """A function on a square, with labelled points.

    Attributes:
        title: What the panel is called.
        values: (n, n), rows along the second coordinate, both from -half to half.
        half: Half the side of the square.
        points: (N, 2).
        labels: (N,) 0 or 1.
        bounds: Range of the values; (0, 1) for a probability of class 1.
        detail: A few words beside the title.
        bar: What a colour bar measures; empty for none.
    """

    title: str
    values: Float[Tensor, "n n"]
    half: float
    points: Float[Tensor, "N 2"]
    labels: Int[Tensor, " N"]
    bounds: tuple[float, float] = (0.0, 1.0)
    detail: str = ""
    bar: str = ""


@dataclass(frozen=True)
class LineMap:
    """A function of one variable with its spread.

    Attributes:
        model: Name of the model, which decides the colour.
        title: What the panel is called.
        x: (n,) inputs.
        mean: (n,) outputs.
        std: (n,) their spread.
        target: (n,) what they should be; NaN where nothing is asked.
        label: Of the vertical axis.
        detail: A few words beside the title.
    """

    model: str
    title: str
    x: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]
    target: Float[Tensor, " n"]
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Trajectories:
    """Paths of some inputs on the line, each up to its own end-time.

    Attributes:
        title: What the panel is called.
        t: (m,) times.
        states: (m, k) states.
        ends: (k,) end-times.
        stops: (k,) states there.
        groups: (k,) 0 or 1, which decides the colour.
    """

    title: str
    t: Float[Tensor, " m"]
    states: Float[Tensor, "m k"]
    ends: Float[Tensor, " k"]
    stops: Float[Tensor, " k"]
    groups: Int[Tensor, " k"]


Panel = PlaneMap | LineMap | Trajectories


def motivating_figure(theme: Theme, rows: Sequence[Sequence[Panel]]) -> Figure:
    """One row per task."""
    columns = max(len(row) for row in rows)
    figure = new_figure(3.3 * columns, 2.9 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panels, shown in zip(grid, rows, strict=True):
        for axes, panel in zip(panels, shown, strict=False):
            if isinstance(panel, PlaneMap):
                _plane(axes, theme, panel)
            elif isinstance(panel, LineMap):
                _line(axes, theme, panel)
            else:
                _trajectories(axes, theme, panel)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
    return figure


def _plane(axes: Axes, theme: Theme, plane: PlaneMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    inner, outer = theme.hues[0], theme.hues[1]
    side = (-plane.half, plane.half, -plane.half, plane.half)
    stops = [theme.background, theme.models["alt-node"]] if plane.bar else [inner, theme.background, outer]
    colours = LinearSegmentedColormap.from_list("ltnode", stops)
    low, high = plane.bounds
    shown = axes.imshow(
        plane.values.numpy(), origin="lower", extent=side, cmap=colours, vmin=low, vmax=high, alpha=0.75, interpolation="bilinear"
    )
    if plane.bar:
        axes.figure.colorbar(shown, ax=axes, shrink=0.75, label=plane.bar)
    else:
        axes.contour(plane.values.numpy(), levels=[0.5], extent=side, colors=[theme.text], linewidths=1.0)
    for label, marker in ((0, "o"), (1, "s")):
        chosen = plane.points[plane.labels == label].numpy()
        axes.plot(chosen[:, 0], chosen[:, 1], marker, ms=1.6, mew=0, color=theme.text, alpha=0.6, rasterized=True)
    axes.set_aspect("equal")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    panel_title(axes, plane.title, plane.detail)


def _line(axes: Axes, theme: Theme, line: LineMap) -> None:
    x = line.x.numpy()
    axes.plot(x, line.target.numpy(), color=theme.faint, lw=5, alpha=0.45, label="target")
    colour = theme.of_model(line.model)
    below, above = (line.mean - line.std).numpy(), (line.mean + line.std).numpy()
    axes.fill_between(x, below, above, color=colour, alpha=0.25, lw=0)
    axes.plot(x, line.mean.numpy(), color=colour, label="mean ± std")
    axes.set_xlabel("x")
    axes.set_ylabel(line.label)
    panel_title(axes, line.title, line.detail)


def _trajectories(axes: Axes, theme: Theme, paths: Trajectories) -> None:
    for k in range(paths.states.shape[1]):
        colour = theme.hues[int(paths.groups[k])]
        until = paths.t <= paths.ends[k]
        axes.plot(paths.t[until].numpy(), paths.states[until, k].numpy(), color=colour, lw=1.1)
        axes.plot(float(paths.ends[k]), float(paths.stops[k]), "o", ms=4, mew=0, color=colour)
        axes.plot(0, float(paths.states[0, k]), "|", ms=7, color=colour)
    axes.set_xlabel("t, a dot at the end-time")
    axes.set_ylabel("state")
    panel_title(axes, paths.title)
