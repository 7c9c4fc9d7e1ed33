"""Figures of the 1-D experiment, drawn from its result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ltnode.data import gap_data
from ltnode.endtime import GammaTime
from ltnode.report.figures_1d import Curve, Posterior, posterior_figure, prediction_figure
from ltnode.report.gap import REGIONS, truth
from ltnode.report.style import SavedFigure, Theme, new_figure, save_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.one_dimensional.experiment import POINTS
from paper.reproduce.one_dimensional.selection import TIMES, standard_error
from paper.reproduce.published import PaperValues

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 8.0
"""Largest end-time shown, which includes almost all of the prior Gamma(2, 0.5)."""
_VISIBLE = 0.995
"""Share of the values of a density that its axis must show: a density that is infinite at 0 must not flatten the rest."""

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
        _ErrorCurve.of(errors, mode, label)
        for mode, label in (("eval", "NODE trained at T, validation RMSE"), ("train", "the same with batch statistics"))
    ]
    t = torch.linspace(0.01, 4.0, 400)
    densities = {
        f"q(T), {r['title'].partition(', ')[2]}": gamma_density(r["posterior"]["alpha"], r["posterior"]["beta"], t)
        for r in learnt
    }
    return save_figure(
        lambda theme: _selection_figure(theme, curves, t, densities),
        out / "selection",
        alt="Validation error of NODEs trained at five end-times, and the density of T that LT-NODE has learnt, on the same axis",
        caption="Bars show one standard error of the RMSE over the validation points.",
    )


@torch.no_grad()
def gamma_density(alpha: float, beta: float, t: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Density of the untruncated Gamma distribution with shape alpha and rate beta at t > 0."""
    return GammaTime(alpha, beta, truncate=False).log_prob(t).exp()


@dataclass(frozen=True)
class _ErrorCurve:
    """Validation errors of models that were trained with one end-time each, and the standard errors of these errors."""

    label: str
    times: Sequence[float]
    errors: Sequence[float]
    standard_errors: Sequence[float]

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]], mode: str, label: str) -> _ErrorCurve:
        """Make a curve of the results of all end-times, with BatchNorm in a mode (``eval`` or ``train``)."""
        errors = [float(r["validation_rmse"][mode]) for r in results]
        widths = [standard_error(error, int(r["n_validation"])) for error, r in zip(errors, results, strict=True)]
        return cls(label, [float(r["time"]) for r in results], errors, widths)


def _selection_figure(
    theme: Theme, curves: Sequence[_ErrorCurve], t: Float[Tensor, " n"], densities: Mapping[str, Float[Tensor, " n"]]
) -> Figure:
    """Draw validation errors against the end-time, and densities q(T) by label at the times t."""
    figure = new_figure(6.6, 3.7)
    axes = figure.subplots()
    other = axes.twinx()
    other.spines["right"].set_visible(True)
    axes.set_zorder(other.get_zorder() + 1)
    axes.patch.set_visible(False)
    for order, (label, density) in enumerate(densities.items()):
        other.fill_between(t.numpy(), 0, density.numpy(), color=theme.hues[(2 * order) % 6], alpha=0.14, lw=0)
        other.plot(t.numpy(), density.numpy(), color=theme.hues[(2 * order) % 6], lw=1.2, label=label)
    for curve, (colour, marker) in zip(curves, ((theme.hues[1], "o"), (theme.text, "s")), strict=False):
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "lw": 1.2, "capsize": 3}
        axes.errorbar(curve.times, curve.errors, yerr=curve.standard_errors, label=curve.label, **look)
    axes.set_xlabel("end-time T")
    axes.set_ylabel("validation RMSE")
    axes.set_ylim(0, None)
    axes.set_xlim(0, float(t[-1]))
    if densities:
        other.set_ylabel("density q(T)")
        top = torch.cat(list(densities.values()))
        other.set_ylim(0, 1.6 * float(top[torch.isfinite(top)].quantile(_VISIBLE)))
    else:
        other.set_visible(False)
    handles, labels = zip(
        *(pair for a in (axes, other) for pair in zip(*a.get_legend_handles_labels(), strict=True)), strict=True
    )
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=2)
    return figure
