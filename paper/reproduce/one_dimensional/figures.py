"""Figures of the 1-D reproduction, drawn from its result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ltnode.data import gap_data
from ltnode.demo.gap import REGIONS, truth
from ltnode.endtime import GammaTime
from ltnode.report.figures_1d import Curve, Posterior, SelectionCurve, posterior_figure, prediction_figure, selection_figure
from ltnode.report.style import SavedFigure, save_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.one_dimensional.selection import TIMES, standard_error
from paper.reproduce.one_dimensional.synthetic import POINTS

_LONGEST = 8.0
"""Largest end-time shown: almost all of the prior Gamma(2, 0.5)."""

Result = Mapping[str, Any]


def draw(out: Path, results: Sequence[Result], selected: Sequence[Result], published: Mapping[str, Any]) -> list[SavedFigure]:
    """Draw what the results allow: predictions, posteriors, model selection.

    Args:
        out: Folder of the figures.
        results: Of `synthetic.reproduce`; of each variant, the first seed is shown.
        selected: Of `selection.reproduce_time`; the first seed is shown.
        published: The table ``synthetic`` of the published values; may be empty.
    """
    first = list({r["variant"]: r for r in reversed(results)}.values())[::-1]
    figures = [_predictions(out, first)] if first else []
    learnt = [r for r in first if r["model"] == "lt-node"]
    if learnt:
        figures.append(_posteriors(out, learnt, published.get("posterior", [])))
    seed = min((int(r["seed"]) for r in selected), default=0)
    errors = sorted((r for r in selected if r["seed"] == seed), key=lambda r: float(r["time"]))
    if len(errors) == len(TIMES):
        figures.append(_selection(out, errors, learnt))
    return figures


def _predictions(out: Path, results: Sequence[Result]) -> SavedFigure:
    data = gap_data(POINTS)
    curves = []
    for r in results:
        entropy = r["entropy"]["model"]
        detail = "one end-time, no spread" if entropy is None else f"E = {entropy['mean']:.2f} ± {entropy['std']:.2f}"
        x, mean, std = (torch.tensor(r["curve"][key]) for key in ("x", "mean", "std"))
        curves.append(Curve(r["model"], r["title"], x, mean, std, detail))
    points = (data.train.x[:, 0], data.train.y)
    return save_figure(
        lambda theme: prediction_figure(theme, curves, points, regions=REGIONS, truth=truth(curves[0].x[:, None])),
        out / "synthetic-predictions",
        alt="Predictive mean and bands of one and two standard deviations of each model of the 1-D experiment",
        caption="The paper's networks and schedule; one set of ten random end-times.",
    )


def _posteriors(out: Path, results: Sequence[Result], published: Sequence[Mapping[str, Any]]) -> SavedFigure:
    t = torch.linspace(_LONGEST / 400, _LONGEST, 400)
    panels = []
    for r in results:
        alpha, beta = r["posterior"]["alpha"], r["posterior"]["beta"]
        densities = {f"learnt, Gamma({alpha:.2f}, {beta:.2f})": gamma_density(alpha, beta, t)}
        for entry in published:
            if list(entry["prior"]) == list(r["prior"]):
                a, b = entry["learnt"]
                densities[f"paper, Gamma({a:g}, {b:g})"] = gamma_density(a, b, t)
        panels.append(Posterior(r["model"], r["title"], t, gamma_density(r["prior"][0], r["prior"][1], t), densities))
    return save_figure(
        lambda theme: posterior_figure(theme, panels),
        out / "synthetic-posteriors",
        alt="LT-NODE's learnt density of the end-time beside the prior and the published posterior, for each prior",
        caption="Shaded: the times that training covers.",
    )


def _selection(out: Path, errors: Sequence[Result], learnt: Sequence[Result]) -> SavedFigure:
    times = [float(r["time"]) for r in errors]
    curves = []
    for mode, label in (("eval", "NODE trained at T, validation RMSE"), ("train", "the same with batch statistics")):
        values = [float(r["validation_rmse"][mode]) for r in errors]
        widths = [standard_error(value, int(r["n_validation"])) for value, r in zip(values, errors, strict=True)]
        curves.append(SelectionCurve(label, times, values, widths))
    t = torch.linspace(0.01, 4.0, 400)
    densities = {
        f"q(T), {r['title'].partition(', ')[2]}": gamma_density(r["posterior"]["alpha"], r["posterior"]["beta"], t)
        for r in learnt
    }
    return save_figure(
        lambda theme: selection_figure(theme, curves, t, densities),
        out / "selection",
        alt="Validation error of NODEs trained at five end-times, and LT-NODE's learnt density of T on the same axis",
        caption="Bars: one standard error of the RMSE over the validation points.",
    )


@torch.no_grad()
def gamma_density(alpha: float, beta: float, t: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Density of Gamma(alpha, rate beta) at t > 0, not truncated."""
    return GammaTime(alpha, beta, truncate=False).log_prob(t).exp()
