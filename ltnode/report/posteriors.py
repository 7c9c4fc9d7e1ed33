"""The end-times that models have learnt, as densities and quantiles for figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ltnode.endtime import AmortizedGammaTime, GammaMixtureTime, GammaTime
from ltnode.models import Model
from ltnode.report.figures_1d import Posterior, TimesAlongInput
from ltnode.typing import Float, Tensor

LearntTime = GammaTime | AmortizedGammaTime | GammaMixtureTime
_POINTS = 400
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def learnt_time(model: Model) -> LearntTime | None:
    """The learnt distribution over end-times; None for a model without one."""
    end_time: Any = getattr(model, "end_time", None)
    return end_time if isinstance(end_time, LearntTime) else None


def prior_of(model: Model) -> tuple[float, float] | None:
    """Shape and rate of a model's Gamma prior, rounded to what float32 can hold; None without a learnt distribution."""
    end_time = learnt_time(model)
    if end_time is None:
        return None
    alpha, beta = (round(value, 6) for value in end_time.get_buffer("prior").tolist())
    return alpha, beta


@torch.no_grad()
def posterior_of(model: Model, name: str, title: str, inputs: Mapping[str, Tensor]) -> Posterior | None:
    """The densities q(T) and p(T) of a model; None without a learnt distribution, or if it needs inputs and there are none.

    Args:
        model: The model.
        name: Its name, which decides the colour.
        title: Title of the panel.
        inputs: Groups of inputs by label. If q depends on the input, its average over each group is shown.
    """
    end_time = learnt_time(model)
    if end_time is None or (end_time.amortized and not inputs):
        return None
    model.eval()
    if end_time.amortized:
        found = {f"q(T | x), {'mean over ' if len(x) > 1 else ''}{label}": end_time(x) for label, x in inputs.items()}
    else:
        found = {"posterior q(T)": end_time()}
    q = next(iter(found.values()))
    high = end_time.window[1] if end_time.truncate else 1.1 * float(q.quantile(torch.tensor([0.99], dtype=torch.float64)).max())
    # Leave out 0, where a density with alpha < 1 is infinite, and the end of the window, where it drops to 0.
    t = torch.linspace(high / _POINTS, high * (1 - 1e-6), _POINTS, device=q.device)
    densities = {label: mean_density(distribution, t) for label, distribution in found.items()}
    detail = gamma_text(end_time) if isinstance(end_time, GammaTime) else ""
    return Posterior(name, title, t.cpu(), mean_density(q.prior, t), densities, end_time.window, detail)


@torch.no_grad()
def times_along(model: Model, name: str, title: str, x: Float[Tensor, "n 1"]) -> TimesAlongInput | None:
    """Quantiles of q(T | x) against the input; None unless every input has its own posterior."""
    end_time = learnt_time(model)
    if not isinstance(end_time, AmortizedGammaTime):
        return None
    model.eval()
    return TimesAlongInput(name, title, x[:, 0], end_time(x).quantile(torch.tensor(_LEVELS, dtype=torch.float64)))


def mean_density(q: Any, t: Tensor) -> Float[Tensor, " n"]:
    """Density at t, averaged over the inputs if each has its own distribution."""
    if not q.batch_shape:
        return q.log_prob(t).exp().cpu().float()
    return q.log_prob(t[:, None].expand(-1, q.batch_shape[0])).exp().mean(1).cpu().float()


def gamma_text(end_time: GammaTime) -> str:
    """Parameters of a Gamma distribution, such as ``Gamma(1.27, 0.98)``, and its window if it is truncated."""
    window = f" on ({end_time.window[0]:g}, {end_time.window[1]:g})" if end_time.truncate else ""
    return f"Gamma({float(end_time.alpha.detach()):.2f}, {float(end_time.beta.detach()):.2f}){window}"
