"""Predictions with adaptive steps of several batches at once, each with the steps and draws that it would have alone.

The reference is `LatentTimeODE.predict` batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ltnode.endtime import FixedTime
from ltnode.endtime.distributions import uniform_draws
from ltnode.models.contract import Draw, check_input
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.modes import evaluating
from ltnode.models.prediction import Prediction
from ltnode.ode import odesolve_batches
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Tensor


def why_not_side_by_side(model: LatentTimeODE) -> str | None:
    """Why `predict_batches` cannot serve this model; None where it can."""
    if model.task != "classification" or type(model.field) is not ConvField:  # another field may couple its inputs
        return f"the model is for {model.task} with a {type(model.field).__name__}, not for classification with a ConvField"
    tableau = get_tableau(model.solver.method)
    return None if tableau.fsal and tableau.adaptive else f"a step of {tableau.name!r} cannot wait for those of other batches"


def predict_batches(
    model: LatentTimeODE, batches: Sequence[Tensor], samples: int, draw: Draw, seeds: Sequence[int]
) -> list[Prediction]:
    """``model.predict(x, samples, draw, seed, "adaptive")`` for every batch and its seed, in one solve.

    Args:
        model: One that `why_not_side_by_side` has nothing against.
        batches: (B, C, H, W) each.
        samples: Number of end-times S.
        draw: ``"quantile"`` or ``"random"``.
        seeds: Of the batches' random draws.
    """
    size, o = len(batches[0]), model.solver
    for x in batches:
        check_input(x)
    with torch.no_grad(), evaluating(model):
        together = torch.cat(list(batches))
        h = model.initial_state(together)
        times = _times(model, together, size, samples, draw, seeds)
        # All members of a fixed end-time are the same one.
        fixed = isinstance(model.end_time, FixedTime)
        distinct = [t[:1] for t in times] if fixed else times
        shared = fixed or (not model.end_time.amortized and (draw == "quantile" or len(set(seeds)) == 1))
        joint = distinct[0] if shared else torch.cat([t.reshape(len(t), -1).expand(-1, size) for t in distinct], dim=1)
        states, stats = odesolve_batches(
            model.field, h, joint, size, o.rtol, o.atol, o.method, clip_last=o.clip_last, max_steps=o.max_steps
        )
        outputs = model.outputs_at(states).expand(samples, -1, -1).split(size, dim=1)
    return [Prediction(model.task, *part) for part in zip(outputs, times, stats, strict=True)]


def _times(model: LatentTimeODE, x: Tensor, size: int, samples: int, draw: Draw, seeds: Sequence[int]) -> list[Tensor]:
    """``model.prediction_times`` of every batch: a quantile is many small kernels, so each posterior is asked once."""
    if not model.end_time.amortized:
        known = {seed: model.prediction_times(x, samples, draw, seed) for seed in sorted(set(seeds))}
        return [known[seed] for seed in seeds]
    if draw != "random":
        return list(model.prediction_times(x, samples, draw).split(size, dim=1))
    levels = [uniform_draws((samples, size), torch.Generator().manual_seed(seed), x.device) for seed in seeds]
    return list(model.end_time(x).quantile(torch.cat(levels, dim=1)).split(size, dim=1))
