"""Figures drawn from trained models: Figure 2 (1-D), the posteriors of the appendix, q(T) over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_grid
from ltnode.endtime import AmortizedGammaTime, GammaMixtureTime, GammaTime
from ltnode.errors import InputError
from ltnode.evaluation import EvaluationOptions
from ltnode.evaluation.predict import Predictor
from ltnode.models import Model
from ltnode.report.figures_1d import Curve, Posterior, posterior_figure, prediction_figure
from ltnode.report.naming import Variant
from ltnode.report.style import Theme, new_figure, panel_title
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 9.6
"""Inches of a figure that fills a page: letters of all figures then have one size."""
_AVERAGED = 512
"""Inputs over which the posteriors of a model with one end-time per input are averaged."""


def figure_2_synthetic(theme: Theme, models: Mapping[Variant, Model], data: Dataset) -> Figure:
    """Figure 2: mean and bands of every model on the 1-D data, with the mean entropy E in the gap (model variance only).

    Args:
        theme: Colours.
        models: Trained on ``data``.
        data: The 1-D data.
    """
    if data.input_shape != (1,) or data.task != "regression":
        raise InputError(f"Figure 2 is for 1-D regression, but {data.name} has inputs of shape {data.input_shape} ({data.task})")
    grid = gap_grid()
    inside = (grid[:, 0] > -0.5) & (grid[:, 0] < 0.5)
    curves = []
    for variant, model in models.items():
        predictor = Predictor(model, data.prepare, EvaluationOptions().resolved(variant.preset))
        p = predictor.regress(grid)
        entropy = metrics.gaussian_entropy(p.std[inside].square())
        detail = "no spread" if predictor.deterministic else f"E = {entropy:.2f} nats"
        curves.append(Curve(variant.model, variant.title, grid[:, 0], p.mean.cpu().float(), p.std.cpu().float(), detail))
    return prediction_figure(theme, curves, (data.train.x[:, 0].float(), data.train.y.float()))


def figure_5_posterior(theme: Theme, models: Mapping[Variant, Model], inputs: Mapping[Variant, Tensor]) -> Figure:
    """Figure 5 (appendix): the learnt posterior beside the wide prior Gamma(1, 0.01)."""
    return _posteriors(theme, {v: m for v, m in models.items() if prior_of(m) == (1.0, 0.01)}, inputs, "Gamma(1, 0.01)")


def figure_6_posterior(theme: Theme, models: Mapping[Variant, Model], inputs: Mapping[Variant, Tensor]) -> Figure:
    """Figure 6 (appendix): the learnt posterior beside the prior Gamma(2, 0.5)."""
    return _posteriors(theme, {v: m for v, m in models.items() if prior_of(m) == (2.0, 0.5)}, inputs, "Gamma(2, 0.5)")


def prior_of(model: Model) -> tuple[float, float] | None:
    """Shape and rate of a model's Gamma prior, as far as float32 keeps them; None for a model without a learnt posterior."""
    end_time = getattr(model, "end_time", None)
    if not isinstance(end_time, GammaTime | AmortizedGammaTime | GammaMixtureTime):
        return None
    alpha, beta = (round(value, 6) for value in end_time.get_buffer("prior").tolist())
    return alpha, beta


def _posteriors(theme: Theme, models: Mapping[Variant, Model], inputs: Mapping[Variant, Tensor], prior: str) -> Figure:
    shown = [_posterior(variant, model, inputs.get(variant)) for variant, model in models.items()]
    found = [posterior for posterior in shown if posterior is not None]
    if not found:
        raise InputError(f"no model with a learnt posterior under the prior {prior}")
    figure = posterior_figure(theme, found)
    figure.set_size_inches(max(_WIDTH, figure.get_figwidth()), figure.get_figheight())
    return figure


@torch.no_grad()
def _posterior(variant: Variant, model: Model, x: Tensor | None) -> Posterior | None:
    end_time: Any = getattr(model, "end_time", None)
    if end_time.amortized and x is None:
        return None
    model.eval()
    q = end_time(x[:_AVERAGED] if end_time.amortized and x is not None else None)
    high = end_time.window[1] if end_time.truncate else 1.1 * float(q.quantile(torch.tensor([0.99], dtype=torch.float64)).max())
    # Not 0 itself, where a density with alpha < 1 is infinite, nor the end of the window, where it drops to 0.
    t = torch.linspace(high / 400, high * (1 - 1e-6), 400, device=q.device)
    density, prior = (mean_density(d, t) for d in (q, q.prior))
    label = "mean of q(T | x)" if end_time.amortized else "posterior q(T)"
    return Posterior(variant.model, variant.title, t.cpu(), prior, {label: density}, end_time.window, _in_words(end_time))


def _in_words(end_time: Any) -> str:
    if isinstance(end_time, GammaTime):
        return f"Gamma({float(end_time.alpha.detach()):.2f}, {float(end_time.beta.detach()):.2f})"
    return ""


def figure_posterior_over_training(theme: Theme, histories: Mapping[Variant, Sequence[Sequence[Mapping[str, Any]]]]) -> Figure:
    """q(T) over training: median, and the range from 5 to 95 %, against the step; one line per seed.

    Args:
        theme: Colours.
        histories: Lines of metrics.jsonl, of every seed of a variant.
    """
    kept = {
        v: [lines for lines in seeds if any("q50" in line.get("learnt", {}) for line in lines)] for v, seeds in histories.items()
    }
    kept = {v: seeds for v, seeds in kept.items() if seeds}
    if not kept:
        raise InputError("no run with a learnt posterior in its log")
    figure = new_figure(_WIDTH, 2.8 * -(-len(kept) // 3))
    grid = figure.subplots(-(-len(kept) // 3), min(3, len(kept)), squeeze=False)
    panels = list(grid.flat)
    for axes in panels[len(kept) :]:
        axes.set_visible(False)
    for axes, (variant, seeds) in zip(panels, kept.items(), strict=False):
        for order, lines in enumerate(seeds):
            known = [line for line in lines if "q50" in line.get("learnt", {})]
            steps = [line["step"] for line in known]
            low, middle, high = ([line["learnt"][key] for line in known] for key in ("q05", "q50", "q95"))
            colour = theme.of_model(variant.model)
            axes.fill_between(steps, low, high, color=colour, alpha=0.14, lw=0, label="5 to 95 %" if order == 0 else None)
            axes.plot(
                steps,
                middle,
                color=colour,
                lw=1.2,
                marker="." if len(steps) == 1 else None,
                label="median" if order == 0 else None,
            )
        axes.set_xlabel("training step")
        axes.set_ylabel("end-time T")
        axes.set_ylim(0, None)
        axes.legend(loc="best")
        panel_title(axes, variant.title, f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}")
    return figure


def mean_density(q: Any, t: Tensor) -> Float[Tensor, " n"]:
    """Density at t, averaged over the inputs where every one has its own."""
    if not q.batch_shape:
        return q.log_prob(t).exp().cpu().float()
    return q.log_prob(t[:, None].expand(-1, q.batch_shape[0])).exp().mean(1).cpu().float()
