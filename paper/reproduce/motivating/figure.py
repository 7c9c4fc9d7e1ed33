"""The figure of the motivating tasks: where each model draws its line, how it reflects, and when it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ltnode.report.style import SavedFigure, Theme, new_figure, panel_title, save_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.motivating.tasks import MODELS, TASKS, Trained, main_score, training_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_HALF, _SIDE = 1.75, 90
"""Half the side of the square that is shown, and the number of points along it."""
_EXTENT = (-_HALF, _HALF, -_HALF, _HALF)

Panel = Callable[["Axes", Theme], None]
"""Draws a panel whose content is already computed, since it is drawn in two themes."""


def draw(out: Path, trained: Sequence[Trained]) -> SavedFigure:
    """Draw decision regions, reflections, and the end-times of ALT-NODE, for one seed.

    Args:
        out: Folder of the figure.
        trained: One model of each kind for each task.
    """
    rows: list[list[Panel]] = []
    for task in TASKS:
        entries = [entry for entry in trained if entry.task == task]
        alt = [entry for entry in entries if entry.model == "alt-node"]
        if task == "concentric":
            rows.append([*map(_regions, entries), *map(_end_times, alt)])
        else:
            rows.append([*map(_line, entries), *map(_paths, alt)])
    return save_figure(
        lambda theme: _figure(theme, [row for row in rows if row]),
        out / "motivating",
        alt="Predictions on concentric annuli and of y = -x, for NODE, augmented NODE and ALT-NODE",
        caption="Probability of the annulus on the line and in the plane (contour at one half), and predictions of y = -x. The "
        "state of NODE and ALT-NODE is the input itself. Paths of ALT-NODE stop at the median of q(T | x).",
    )


def _figure(theme: Theme, rows: Sequence[Sequence[Panel]]) -> Figure:
    """Draw one row of panels per task."""
    columns = max(len(row) for row in rows)
    figure = new_figure(3.3 * columns, 2.9 * len(rows))
    for axes_row, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes, panel in zip(axes_row, row, strict=False):
            panel(axes, theme)
        for axes in axes_row[len(row) :]:
            axes.set_visible(False)
    return figure


def _title(entry: Trained) -> str:
    return MODELS[entry.model].split(",")[0] + (" + 1 dim." if entry.model == "node-augmented" else "")


def _square() -> Float[Tensor, "N 2"]:
    axis = torch.linspace(-_HALF, _HALF, _SIDE)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([first.reshape(-1), second.reshape(-1)], dim=1)


def _regions(entry: Trained) -> Panel:
    """The probability of the annulus in the plane."""
    probability = entry.network.predict(_square()).probs[:, 1].reshape(_SIDE, _SIDE)

    def panel(axes: Axes, theme: Theme) -> None:
        _map(axes, entry, probability, 1.0, [theme.hues[0], theme.background, theme.hues[1]], theme)
        axes.contour(probability.numpy(), levels=[0.5], extent=_EXTENT, colors=[theme.text], linewidths=1.0)
        panel_title(axes, _title(entry), f"error {100 * main_score(entry.task, entry.result['scores']):.2f} %")

    return panel


@torch.no_grad()
def _end_times(entry: Trained) -> Panel:
    """The mean end-time in the plane."""
    mean = entry.network.end_time(_square()).mean.reshape(_SIDE, _SIDE)

    def panel(axes: Axes, theme: Theme) -> None:
        high = float(entry.network.end_time.window[1])
        shown = _map(axes, entry, mean, high, [theme.background, theme.models["alt-node"]], theme)
        axes.figure.colorbar(shown, ax=axes, shrink=0.75, label="E[T | x]")
        panel_title(axes, "ALT-NODE: end-time")

    return panel


def _map(axes: Axes, entry: Trained, values: Tensor, high: float, colours: list[str], theme: Theme) -> AxesImage:
    """Show values between 0 and ``high`` on the square, with the training points."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("ltnode", colours)
    shown = axes.imshow(
        values.numpy(), origin="lower", extent=_EXTENT, cmap=scale, vmin=0, vmax=high, alpha=0.75, interpolation="bilinear"
    )
    data = training_data(entry.task, entry.seed).train
    for label, marker in ((0, "o"), (1, "s")):
        chosen = data.x[data.y == label].numpy()
        axes.plot(chosen[:, 0], chosen[:, 1], marker, ms=1.6, mew=0, color=theme.text, alpha=0.6, rasterized=True)
    axes.set_aspect("equal")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    return shown


def _line(entry: Trained) -> Panel:
    """Predictions on the line: of y = -x, or of the annulus."""
    reflection = entry.task == "reflection"
    x = torch.linspace(-1.0, 1.0, 301) if reflection else torch.linspace(-_HALF, _HALF, 301)
    predicted = entry.network.predict(x[:, None])
    score = main_score(entry.task, entry.result["scores"])
    if reflection:
        mean, std, target = predicted.mean, predicted.std, -x
    else:
        members = predicted.member_probs[..., 1]
        mean, std, target = members.mean(dim=0), members.std(dim=0, correction=0), torch.full_like(x, torch.nan)
        target[x.abs() <= 0.5] = 0.0
        target[(x.abs() >= 1) & (x.abs() <= 1.5)] = 1.0

    def panel(axes: Axes, theme: Theme) -> None:
        colour = theme.of_model("node" if entry.model == "node-augmented" else entry.model)
        axes.plot(x.numpy(), target.numpy(), color=theme.faint, lw=5, alpha=0.45, label="target")
        axes.fill_between(x.numpy(), (mean - std).numpy(), (mean + std).numpy(), color=colour, alpha=0.25, lw=0)
        axes.plot(x.numpy(), mean.numpy(), color=colour, label="mean ± std")
        axes.set_xlabel("x")
        axes.set_ylabel("y" if reflection else "P(annulus)")
        panel_title(axes, _title(entry), f"RMSE {score:.3f}" if reflection else f"error {100 * score:.1f} %")

    return panel


@torch.no_grad()
def _paths(entry: Trained) -> Panel:
    """Paths of some inputs on the line, each up to its end-time."""
    network = entry.network
    if entry.task == "reflection":
        x = torch.linspace(-0.9, 0.9, 7)[:, None]
        groups = (x[:, 0] > 0).long()
    else:
        x = torch.tensor([-1.4, -1.1, -0.4, -0.2, 0.0, 0.2, 0.4, 1.1, 1.4])[:, None]
        groups = (x[:, 0].abs() > 0.75).long()
    network.eval()
    ends = network.end_time(x).quantile(torch.tensor([0.5], dtype=torch.float64))
    t = torch.linspace(0.0, float(network.end_time.window[1]), 200)
    states = network.solve(network.initial_state(x), t, "adaptive").states[..., 0]
    stops = network.solve(network.initial_state(x), ends, "adaptive").states[0, :, 0]

    def panel(axes: Axes, theme: Theme) -> None:
        for k, end in enumerate(ends[0].tolist()):
            colour, until = theme.hues[int(groups[k])], t <= end
            axes.plot(t[until].numpy(), states[until, k].numpy(), color=colour, lw=1.1)
            axes.plot(end, float(stops[k]), "o", ms=4, mew=0, color=colour)
            axes.plot(0, float(states[0, k]), "|", ms=7, color=colour)
        axes.set_xlabel("t, a dot at the end-time")
        axes.set_ylabel("state")
        panel_title(axes, "ALT-NODE: paths")

    return panel
