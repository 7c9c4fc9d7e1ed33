"""Predictions of several batches in one solve with adaptive steps; each batch keeps the steps and draws it would have alone.

The reference is one call of `LatentTimeODE.predict` per batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ltnode.endtime import FixedTime
from ltnode.endtime.distributions import uniform_draws
from ltnode.models.contract import Draw, check_input, evaluating
from ltnode.models.familiar_model import Members
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.path_process import Fallback
from ltnode.models.prediction import Prediction
from ltnode.ode import odesolve_batches
from ltnode.typing import Tensor


def predict_batches(
    model: LatentTimeODE, batches: Sequence[Tensor], samples: int, draw: Draw, seeds: Sequence[int]
) -> list[Prediction]:
    """Return ``model.predict(x, samples, draw, seed, "adaptive")`` for every batch and its seed, from one solve.

    Args:
        model: A model that `plan.unsupported_reason_joint_batches` supports.
        batches: Images (B, C, H, W) of every batch.
        samples: Number of end-times S.
        draw: ``"quantile"`` or ``"random"``.
        seeds: Seed of the random draws of every batch.
    """
    size, o = len(batches[0]), model.solver
    for x in batches:
        check_input(x)
    with torch.no_grad(), evaluating(model):
        together = torch.cat(list(batches))
        h = model.initial_state(together)
        times = _times(model, together, size, samples, draw, seeds)
        # All members of a fixed end-time are equal.
        fixed = isinstance(model.end_time, FixedTime)
        distinct = [t[:1] for t in times] if fixed else times
        shared = fixed or (not model.end_time.amortized and (draw == "quantile" or len(set(seeds)) == 1))
        joint = distinct[0] if shared else torch.cat([t.reshape(len(t), -1).expand(-1, size) for t in distinct], dim=1)
        with_path = model.has_familiarity
        all_times = model.with_path_times(joint) if with_path else joint
        states, stats = odesolve_batches(
            model.field, h, all_times, size, o.rtol, o.atol, o.method, clip_last=o.clip_last, max_steps=o.max_steps
        )
        outputs, features = model.split_path(states) if with_path else (model.outputs_at(states), None)
        noise = model.likelihood.observation_noise()
        distances: Sequence[Tensor | None] = [None] * len(batches)
        fallbacks: Sequence[Fallback | None] = [None] * len(batches)
        if features is not None:
            distances = model.familiarity(features).split(size)
            if (whole := model.fallback(features, noise)) is not None:
                fallbacks = [Fallback(*part) for part in zip(*(value.split(size) for value in whole), strict=True)]
        parts = zip(outputs.expand(samples, -1, -1).split(size, dim=1), times, stats, distances, fallbacks, strict=True)
        return [model.answer(Members(out, t, work, noise, distance, other)) for out, t, work, distance, other in parts]


def _times(model: LatentTimeODE, x: Tensor, size: int, samples: int, draw: Draw, seeds: Sequence[int]) -> list[Tensor]:
    """Return ``model.prediction_times`` of every batch; each quantile costs many small kernels, so none is computed twice."""
    if not model.end_time.amortized:
        known = {seed: model.prediction_times(x, samples, draw, seed) for seed in sorted(set(seeds))}
        return [known[seed] for seed in seeds]
    if draw != "random":
        return list(model.prediction_times(x, samples, draw).split(size, dim=1))
    levels = [uniform_draws((samples, size), torch.Generator().manual_seed(seed), x.device) for seed in seeds]
    return list(model.end_time(x).quantile(torch.cat(levels, dim=1)).split(size, dim=1))
