"""What the demo and the reproduction share: the data with a gap, and how a model on them is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ltnode.endtime import AmortizedGammaTime, GammaMixtureTime, GammaTime
from ltnode.models import Model
from ltnode.report.figures_1d import Posterior, TimesAlongInput
from ltnode.report.naming import model_title
from ltnode.typing import Bool, Float, Tensor

REGIONS = ((-1.0, -0.7), (0.5, 1.0))
"""Where the training inputs lie."""
GAP = (-0.5, 0.5)
"""The interval between them on which the paper measures uncertainty."""


def in_gap(x: Float[Tensor, "n 1"]) -> Bool[Tensor, " n"]:
    """Which inputs lie strictly inside of the gap."""
    return (x[:, 0] > GAP[0]) & (x[:, 0] < GAP[1])


def truth(x: Float[Tensor, "n 1"]) -> Float[Tensor, " n"]:
    """The function behind the data."""
    return torch.cos(4 * x[:, 0] + 0.8)


def learnt(model: Model) -> GammaTime | AmortizedGammaTime | GammaMixtureTime | None:
    """The learnt distribution over end-times; None for a model without one."""
    end_time: Any = getattr(model, "end_time", None)
    return end_time if isinstance(end_time, GammaTime | AmortizedGammaTime | GammaMixtureTime) else None


@torch.no_grad()
def posterior_of(
    model: Model, name: str, inputs: dict[str, Float[Tensor, "n 1"]], t_max: float | None = None
) -> Posterior | None:
    """q(T) and p(T) of a model, for a figure; None for a model without a learnt end-time.

    Args:
        model: The model.
        name: Its name.
        inputs: Label and inputs; where every input has its own q, the average over each group of inputs is shown.
        t_max: Largest time shown; by default the end of the training window.
    """
    end_time = learnt(model)
    if end_time is None:
        return None
    high = end_time.window[1] if t_max is None else t_max
    # Not 0 itself, where a density with alpha < 1 is infinite, and not the end of the window, where it drops to 0.
    t = torch.linspace(high / 400, high * (1 - 1e-6), 400)
    model.eval()
    if isinstance(end_time, AmortizedGammaTime):
        groups = {label: end_time(x) for label, x in inputs.items()}
        prior = end_time(next(iter(inputs.values()))[:1]).prior
        densities = {f"q(T | x), mean over {label}": _mean_density(q, t) for label, q in groups.items()}
        prior_density = _mean_density(prior, t)
        detail = ""
    else:
        q = end_time()
        densities = {"posterior q(T)": q.log_prob(t).exp()}
        prior_density = q.prior.log_prob(t).exp()
        detail = gamma_text(end_time) if isinstance(end_time, GammaTime) else ""
    shown = Posterior(name, f"{model_title(name)}: q(T)", t, prior_density, densities, end_time.window, detail)
    return replace(shown, prior=shown.prior.float(), densities={k: v.float() for k, v in densities.items()})


def _mean_density(q: Any, t: Tensor) -> Tensor:
    columns = q.batch_shape[0] if q.batch_shape else 1
    at = t[:, None].expand(-1, columns) if q.batch_shape else t
    density = q.log_prob(at).exp()
    return density.mean(dim=1) if density.ndim == 2 else density


@torch.no_grad()
def times_along(model: Model, name: str, x: Float[Tensor, "n 1"]) -> TimesAlongInput | None:
    """Quantiles of q(T | x) along the input; None unless every input has its own posterior."""
    end_time = learnt(model)
    if not isinstance(end_time, AmortizedGammaTime):
        return None
    model.eval()
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    return TimesAlongInput(name, f"{model_title(name)}: T against x", x[:, 0], end_time(x).quantile(levels))


def gamma_text(end_time: GammaTime) -> str:
    """``Gamma(1.27, 0.98)``, with the window where it is truncated."""
    on = f" on ({end_time.window[0]:g}, {end_time.window[1]:g})" if end_time.truncate else ""
    return f"Gamma({float(end_time.alpha.detach()):.2f}, {float(end_time.beta.detach()):.2f}){on}"
