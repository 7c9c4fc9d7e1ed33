"""What every metric asks of its arguments; each check returns the tensor in the form the metric computes with."""

from __future__ import annotations

import torch

from ltnode.errors import InputError
from ltnode.typing import Tensor

# Softmax rows in 32 or 64 bits sum to 1 within rounding, in 16 bits within about 1e-2; logits passed by mistake do not.
_SUM_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 2e-2}
_SUM_TOLERANCE_DEFAULT = 1e-3


def check_floating(name: str, value: Tensor, ndim: int | None = None) -> Tensor:
    """Require a non-empty floating-point tensor, of ``ndim`` dimensions when given."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(value).__name__}: wrap it with torch.as_tensor.")
    if not value.is_floating_point():
        raise InputError(f"{name} must be floating point, got {value.dtype}: convert it with .float() or .double().")
    if ndim is not None and value.ndim != ndim:
        raise InputError(f"{name} must have {ndim} dimension(s), got shape {tuple(value.shape)}: reshape it.")
    if value.numel() == 0:
        raise InputError(f"{name} is empty, shape {tuple(value.shape)}: the metric needs at least one value.")
    return value


def check_probs(name: str, probs: Tensor, ndim: int | None = 2) -> Tensor:
    """Require probabilities over the last dimension; returned in float64."""
    check_floating(name, probs, ndim)
    if probs.ndim == 0:
        raise InputError(f"{name} must have a last dimension of classes, got a 0-dimensional tensor.")
    wide = probs.double()
    if not bool(((wide >= 0) & (wide <= 1 + _SUM_TOLERANCE_DEFAULT)).all()):
        raise InputError(
            f"{name} must lie in [0, 1], got values in [{wide.min().item():.6g}, {wide.max().item():.6g}] (nan: not a "
            "number): pass probabilities, for instance logits.softmax(-1)."
        )
    tolerance = _SUM_TOLERANCE.get(probs.dtype, _SUM_TOLERANCE_DEFAULT)
    worst = (wide.sum(-1) - 1).abs().max().item()
    if worst > tolerance:
        raise InputError(
            f"{name} must sum to 1 over the last dimension, got a row that misses 1 by {worst:.3g} (allowed "
            f"{tolerance:g}): normalise, for instance with softmax."
        )
    return wide


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Require one class index per row of ``probs`` (B, C); returned as int64 on the device of ``probs``."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels must be a torch.Tensor, got {type(labels).__name__}: wrap it with torch.as_tensor.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers, got {labels.dtype}: pass class indices, converted with .long().")
    n, classes = probs.shape
    if labels.shape != (n,):
        raise InputError(f"labels must have shape ({n},) to match probs {(n, classes)}, got {tuple(labels.shape)}.")
    labels = labels.to(device=probs.device, dtype=torch.int64)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise InputError(f"labels must lie in 0..{classes - 1} for {classes} classes, got {lowest}..{highest}.")
    return labels


def check_scores(name: str, scores: Tensor) -> Tensor:
    """Require a vector of scores without nan (infinities have an order and are allowed); returned in float64."""
    check_floating(name, scores, ndim=1)
    if bool(scores.isnan().any()):
        raise InputError(f"{name} holds {int(scores.isnan().sum())} nan of {scores.numel()} values: nan has no rank.")
    return scores.double()


def check_confidence(confidence: Tensor | None, probs: Tensor) -> Tensor:
    """The given confidence per row of ``probs`` (larger = more confident), or the largest probability."""
    if confidence is None:
        return probs.amax(-1)
    confidence = check_scores("confidence", confidence).to(probs.device)
    if confidence.shape != probs.shape[:1]:
        raise InputError(f"confidence must have shape ({probs.shape[0]},), got {tuple(confidence.shape)}.")
    return confidence


def check_same_shape(**values: Tensor) -> tuple[Tensor, ...]:
    """Require finite floating-point tensors of one common shape (no broadcasting); returned in float64."""
    shapes = {name: tuple(value.shape) for name, value in values.items() if isinstance(value, Tensor)}
    wide = []
    for name, value in values.items():
        check_floating(name, value)
        if not bool(value.isfinite().all()):
            raise InputError(f"{name} holds nan or infinite values: remove or repair them first.")
        wide.append(value.double())
    if len(set(shapes.values())) > 1:
        # (B,) against (B, 1) would broadcast to (B, B) and give a plausible wrong number.
        raise InputError(f"the shapes must be equal, got {shapes}: reshape, for instance with .squeeze(-1).")
    return tuple(value.to(wide[0].device) for value in wide)


def check_positive(name: str, value: Tensor) -> Tensor:
    """Require every element to be larger than zero."""
    if not bool((value > 0).all()):
        raise InputError(f"{name} must be positive, got a smallest value of {value.min().item():.6g}: add a floor.")
    return value


def check_bins(n_bins: int) -> int:
    """Require a number of bins of at least 1."""
    if n_bins < 1:
        raise InputError(f"n_bins must be at least 1, got {n_bins}.")
    return n_bins
