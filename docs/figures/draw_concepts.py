"""Draw the figures of docs/concepts.md: ``python docs/figures/draw_concepts.py --demo FOLDER [members|familiarity|grids]``.

All of them show the LT-NODE that ``ltnode demo`` saved in FOLDER. Each is written for light and for dark pages.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from draw import DASHES, END, save
from torch import Tensor

import ltnode
from ltnode.data import gap_data
from ltnode.ode import TrainingGrid, odesolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from ltnode.report.style import Theme, new_figure, panel_title

DATA = ((-1.0, -0.7), (0.5, 1.0))
INPUTS = ((-0.85, "x = −0.85, on the data"), (-0.1, "x = −0.1, in the gap"), (1.6, "x = 1.6, outside"))
RATE = 0.05
"""The false-alarm rate of the flag."""


def members_figure(theme: Theme, model: ltnode.LatentTimeODE) -> Figure:
    """One solve: the path of an input, what the answer would be at every time, and ten members along x."""
    figure = new_figure(11.4, 3.3)
    left, middle, right = figure.subplots(1, 3)
    t = torch.linspace(0.0, END, 151)
    stops = model.prediction_times(torch.zeros(1, 1), samples=10)
    x = torch.tensor([[value] for value, _ in INPUTS])
    states = model.solve(model.initial_state(x), torch.cat([t, stops]), "adaptive").states.detach()
    answers = model.outputs_at(states)[..., 0].detach()

    largest = states[:, 1].std(dim=0).topk(6).indices
    left.plot(t, states[: len(t), 1, largest], color=theme.of_model("lt-node"), lw=1.1)
    _stops(left, theme, stops)
    left.set(xlabel="t", ylabel="six components of h(t)", xlim=(0, END))
    panel_title(left, "One solve", "x = −0.1; ten end-times")

    for column, (_, label) in enumerate(INPUTS):
        middle.plot(t, answers[: len(t), column], color=theme.hues[column], label=label)
        middle.plot(stops, answers[len(t) :, column], ".", ms=5, color=theme.hues[column])
    _stops(middle, theme, stops)
    middle.set(xlabel="t", ylabel="answer if the solve stopped at t", xlim=(0, END), ylim=(-3, 3))
    middle.legend(loc="lower right")
    panel_title(middle, "Ten answers")

    line = torch.linspace(-2, 2, 201)
    outputs = model.outputs_at(model.solve(model.initial_state(line[:, None]), stops, "adaptive").states)[..., 0].detach()
    _data(right, theme)
    right.plot(line, outputs.T, color=theme.of_model("lt-node"), lw=0.8, alpha=0.6)
    right.plot(line, torch.cos(4 * line + 0.8), ls=DASHES, lw=1.1, color=theme.faint)
    right.set(xlabel="x", ylabel="y", xlim=(-2, 2), ylim=(-3, 3))
    panel_title(right, "Ten members", "before widening")
    return figure


def familiarity_figure(theme: Theme, model: ltnode.LatentTimeODE) -> Figure:
    """The distance along x, distances of new inputs like the training data and of others, and the rank among held-out ones."""
    figure = new_figure(11.4, 3.3)
    left, middle, right = figure.subplots(1, 3)
    line = torch.linspace(-2, 2, 401)
    p = model.predict(line[:, None])
    held_out = model.ranks.distances
    limit = float(held_out[math.ceil((len(held_out) + 1) * (1 - RATE)) - 1])  # the flag is raised beyond it
    for axes in (left, right):
        _data(axes, theme)
        axes.set(xlabel="x", xlim=(-2, 2))
    left.plot(line, p.distance, color=theme.of_model("lt-node"))
    left.axhline(limit, ls=DASHES, color=theme.faint)
    left.set(ylabel="distance of the path")
    panel_title(left, "Distance")

    new = model.predict(gap_data(2000, seed=1).train.x)
    alike, alarms = new.distance, float((new.familiarity <= RATE).double().mean())
    gap = model.predict(torch.linspace(-0.65, 0.45, 500)[:, None]).distance
    bins = torch.linspace(float(alike.min()), float(p.distance.max()), 40).numpy()
    middle.hist(alike, bins, density=True, color=theme.hues[0], alpha=0.7, label=f"like the data, {alarms:.0%} flagged")
    middle.hist(gap, bins, density=True, color=theme.hues[1], alpha=0.7, label="in the gap")
    middle.axvline(limit, ls=DASHES, color=theme.faint)
    middle.set(xlabel="distance", ylabel="density")
    middle.legend(loc="upper right")
    panel_title(middle, "New inputs", "flagged right of the line")

    right.plot(line, p.familiarity, color=theme.of_model("lt-node"))
    right.axhline(RATE, ls=DASHES, color=theme.faint, label=f"flagged at or below {RATE:.2f}")
    right.set(ylabel="familiarity (p-value)", ylim=(0, 1.02))
    right.legend(loc="upper right")
    panel_title(right, "Familiarity", f"rank among {len(held_out)} held-out examples")
    return figure


def grids_figure(theme: Theme, model: ltnode.LatentTimeODE) -> Figure:
    """The steps of adaptive control, of the training grid and of the prediction grid, and the error of each step."""
    figure = new_figure(11.4, 3.3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    h = model.initial_state(gap_data(300, 0).train.x).detach()
    o, times = model.solver, torch.tensor([END])
    kept = TrainingGrid(END)
    with torch.no_grad():
        adaptive = odesolve(model.field, h, times, o.rtol, o.atol, o.method)
        for _ in range(200):  # as many training steps with a field that does not change
            training = odesolve(model.field, h, times, o.rtol, o.atol, o.method, grid=kept)
        stored = odesolve(model.field, h, times, o.rtol, o.atol, o.method, grid=model.grid)
    rows = (("adaptive steps", adaptive), ("training grid", training), ("prediction grid", stored))
    for row, (name, solution) in enumerate(rows):
        edges, colour = solution.grid, theme.hues[row]
        left.plot(edges, torch.full_like(edges, -row), "|-", ms=16, mew=1.6, lw=0.8, color=colour)
        n = len(edges) - 1
        left.annotate(
            f"{name}: {n} steps, {solution.stats.n_evaluations} evaluations", (0, -row + 0.28), color=colour, fontsize=9
        )
        right.stairs(solution.error_norms.detach(), edges, baseline=None, color=colour, lw=1.6, label=name)
    left.set(xlabel="t", xlim=(-0.03, END + 0.03), ylim=(-2.5, 0.7), yticks=[])
    panel_title(left, "Steps of one solve", "300 inputs")
    right.axhline(1, ls=DASHES, color=theme.faint)
    right.set(xlabel="t", ylabel="error of a step / tolerance", xlim=(0, END), ylim=(0, 1.15))
    right.legend(loc="center right")
    panel_title(right, "Error of every step", "rejected above 1")
    return figure


def _stops(axes: Axes, theme: Theme, stops: Tensor) -> None:
    for stop in stops.tolist():
        axes.axvline(stop, color=theme.faint, lw=0.6, alpha=0.6)


def _data(axes: Axes, theme: Theme) -> None:
    for low, high in DATA:
        axes.axvspan(low, high, color=theme.shade, lw=0)


DRAW: dict[str, Callable[[Theme, ltnode.LatentTimeODE], Figure]] = {
    "members": members_figure,
    "familiarity": familiarity_figure,
    "grids": grids_figure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", default=list(DRAW), help=", ".join(DRAW))
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="output folder of `ltnode demo`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = ltnode.load(arguments.demo / "runs" / "lt-node")
    assert isinstance(model, ltnode.LatentTimeODE)
    for name in arguments.figures:
        save(name, lambda theme, draw=DRAW[name]: draw(theme, model))


if __name__ == "__main__":
    main()
