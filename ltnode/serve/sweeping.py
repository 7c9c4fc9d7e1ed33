"""A rotation sweep in rounds: other requests have their turn between two rounds, and the time limit ends it with what is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ltnode.serve import answers, explore
from ltnode.serve.service import Service
from ltnode.trained import PredictionRow, TrainedModel
from ltnode.typing import Float, Tensor

_ROUND = 15
"""Angles of one round: with the unchanged image, the first round of most sweeps is the only one."""


async def sweep(
    service: Service, models: Sequence[TrainedModel], raw: Float[Tensor, "1 C H W"], angles: Sequence[float], samples: int
) -> answers.SweepAnswer:
    """Predict the rotated image by all models, for as many of the angles as the time limit allows, at least one round."""
    until = time.monotonic() + service.limits.sweep_seconds
    angles = list(dict.fromkeys(angles))
    rows: list[list[PredictionRow]] = [[] for _ in models]
    done = 0
    while done < len(angles) and (done == 0 or time.monotonic() < until):
        rotated = explore.rotations(raw, angles[done : done + _ROUND])
        inputs = rotated if done == 0 else rotated[1:]
        predicted = await asyncio.gather(*(service.predict(trained, inputs, samples) for trained in models))
        for known, part in zip(rows, predicted, strict=True):
            known.extend(part.rows)
        done = min(done + _ROUND, len(angles))
    curves = [explore.sweep_curve(trained, known) for trained, known in zip(models, rows, strict=True)]
    cut = f"stopped after {service.limits.sweep_seconds:g} s: {done} of {len(angles)} angles; ask for fewer samples or models"
    return answers.SweepAnswer(angles=angles[:done], curves=curves, notes=[cut] if done < len(angles) else [])
