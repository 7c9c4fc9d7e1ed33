"""Figures of the 1-D experiment, drawn from its result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ltnode.data import gap_data
from ltnode.endtime import GammaTime
from ltnode.report.figures_1d import Curve, Posterior, posterior_figure, prediction_figure
from ltnode.report.gap import REGIONS, truth
from ltnode.report.style import SavedFigure, save_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.one_dimensional.selection import TIMES
from paper.reproduce.one_dimensional.selection_figure import ErrorCurve, selection_figure
from paper.reproduce.one_dimensional.variants import POINTS
from paper.reproduce.published import PaperValues

_LONGEST = 8.0
"""Largest end-time shown, which includes almost all of the prior Gamma(2, 0.5)."""

Result = Mapping[str, Any]


def draw(out: Path, results: Sequence[Result], selected: Sequence[Result], published: PaperValues) -> list[SavedFigure]:
    """Draw the figures for which there are results: predictions, posteriors, model selection.

    Args:
        out: Folder of the figures.
        results: Results of the models; the first seed of each is shown.
        selected: Results of the model selection; the first seed is shown.
        published: What the paper prints; may be empty.
    """
    first = list({r["variant"]: r for r in reversed(results)}.values())[::-1]
    figures = [_predictions(out, first)] if first else []
    learnt = [r for r in first if r["model"] == "lt-node"]
    if learnt:
        figures.append(_posteriors(out, learnt, published))
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


def _posteriors(out: Path, results: Sequence[Result], published: PaperValues) -> SavedFigure:
    t = torch.linspace(_LONGEST / 400, _LONGEST, 400)
    panels = []
    for r in results:
        alpha, beta = r["posterior"]["alpha"], r["posterior"]["beta"]
        densities = {f"learnt, Gamma({alpha:.2f}, {beta:.2f})": gamma_density(alpha, beta, t)}
        prior = (float(r["prior"][0]), float(r["prior"][1]))
        if (paper := published.learnt_posterior(prior)) is not None:
            densities[f"paper, Gamma({paper[0]:g}, {paper[1]:g})"] = gamma_density(*paper, t)
        panels.append(Posterior(r["model"], r["title"], t, gamma_density(*prior, t), densities))
    return save_figure(
        lambda theme: posterior_figure(theme, panels),
        out / "synthetic-posteriors",
        alt="Density of the end-time that LT-NODE has learnt, with the prior and the published posterior, for each prior",
        caption="The times that training covers are shaded.",
    )


def _selection(out: Path, errors: Sequence[Result], learnt: Sequence[Result]) -> SavedFigure:
    curves = [
        ErrorCurve.of(errors, mode, label)
        for mode, label in (("eval", "NODE trained at T, validation RMSE"), ("train", "the same with batch statistics"))
    ]
    t = torch.linspace(0.01, 4.0, 400)
    densities = {
        f"q(T), {r['title'].partition(', ')[2]}": gamma_density(r["posterior"]["alpha"], r["posterior"]["beta"], t)
        for r in learnt
    }
    return save_figure(
        lambda theme: selection_figure(theme, curves, t, densities),
        out / "selection",
        alt="Validation error of NODEs trained at five end-times, and the density of T that LT-NODE has learnt, on the same axis",
        caption="Bars show one standard error of the RMSE over the validation points.",
    )


@torch.no_grad()
def gamma_density(alpha: float, beta: float, t: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Density of the untruncated Gamma distribution with shape alpha and rate beta at t > 0."""
    return GammaTime(alpha, beta, truncate=False).log_prob(t).exp()
