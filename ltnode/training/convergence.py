"""Whether a training has converged, judged by its log alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FEWEST = 4
"""Fewer values than these do not show a trend."""
_STILL_FALLING = 0.1
"""Share of the whole improvement that may still happen in the last fifth of a training that has converged."""


def not_converged(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why a training seems to have stopped too early; None if it has converged, or if there is no log.

    The measure is the loss of the held-out examples if it was logged often enough, and the training loss otherwise. Its mean over
    the last fifth of the log is compared with that over the fifth before.

    Args:
        history: Lines of the log of a run, as in ``metrics.jsonl``.
    """
    if not history:
        return None
    name, values = _measure(history)
    steps = history[-1].get("step")
    if len(values) < _FEWEST:
        return f"the training had only {steps} steps, too few to tell whether it has converged: train longer"
    part = max(1, len(values) // 5)
    last, before = values[-part:], values[-2 * part : -part]
    fall = sum(before) / part - sum(last) / part
    whole = max(values[0] - min(values), 1e-12)
    if fall <= _STILL_FALLING * whole:
        return None
    return (
        f"the training has not converged: the {name} was still falling at the end (by {fall:.3g} in the last fifth of the "
        f"{steps} steps, of {whole:.3g} in all): train longer"
    )


def _measure(history: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
    """The name and the values of what is to become small."""
    validation = [line["validation"] for line in history if line.get("validation")]
    if len(validation) >= _FEWEST:
        if "log_likelihood" in validation[0]:
            return "validation loss", [-float(numbers["log_likelihood"]) for numbers in validation]
        return "validation error", [float(next(iter(numbers.values()))) for numbers in validation]
    return "loss", [float(line["loss"]) for line in history if "loss" in line]
