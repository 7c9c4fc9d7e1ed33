"""Argument checks of the metrics; each returns the tensor in the form that the computation uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import torch

from ltnode.errors import InputError
from ltnode.typing import Tensor

P = ParamSpec("P")
R = TypeVar("R")

# Softmax rows in 32 or 64 bits sum to 1 up to rounding, in 16 bits up to about 1e-2; logits passed by mistake do not.
_SUM_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 2e-2}
_SUM_TOLERANCE_DEFAULT = 1e-3


def accepts_numpy(metric: Callable[P, R]) -> Callable[P, R]:
    """Let a metric take numeric numpy arrays in place of tensors."""

    @functools.wraps(metric)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return metric(*map(_as_tensor, args), **{name: _as_tensor(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return wrapped


def _as_tensor(value: object) -> object:
    # A copy, because torch warns about read-only arrays and does not support negative strides.
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value


def check_floating(name: str, value: Tensor, ndim: int | None = None) -> Tensor:
    """Require a non-empty floating-point tensor, with ``ndim`` dimensions if given."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a torch.Tensor or a numpy array, not {type(value).__name__}; use torch.as_tensor")
    if not value.is_floating_point():
        raise InputError(f"{name} must be floating point, not {value.dtype}; convert it with .float() or .double()")
    if ndim is not None and value.ndim != ndim:
        raise InputError(f"{name} must have {ndim} dimension(s), not shape {tuple(value.shape)}")
    if value.numel() == 0:
        raise InputError(f"{name} must not be empty, but has shape {tuple(value.shape)}")
    return value


def check_probs(name: str, probs: Tensor, ndim: int | None = 2) -> Tensor:
    """Require probabilities over the last dimension; returned in float64."""
    check_floating(name, probs, ndim)
    if probs.ndim == 0:
        raise InputError(f"{name} must have a last dimension of classes, but it is 0-dimensional")
    wide = probs.double()
    if not bool(((wide >= 0) & (wide <= 1 + _SUM_TOLERANCE_DEFAULT)).all()):
        raise InputError(
            f"{name} must lie in [0, 1], not in [{wide.min().item():.6g}, {wide.max().item():.6g}]; pass probabilities, "
            "for example logits.softmax(-1)"
        )
    tolerance = _SUM_TOLERANCE.get(probs.dtype, _SUM_TOLERANCE_DEFAULT)
    worst = (wide.sum(-1) - 1).abs().max().item()
    if worst > tolerance:
        raise InputError(
            f"{name} must sum to 1 over the last dimension, but the sum of a row differs from 1 by {worst:.3g} "
            f"(tolerance {tolerance:g}); normalise them, for example with softmax"
        )
    return wide


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Require one class index per row of ``probs`` (B, C); returned as int64 on the device of ``probs``."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels must be a torch.Tensor or a numpy array, not {type(labels).__name__}; use torch.as_tensor")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers, not {labels.dtype}; pass class indices, for example labels.long()")
    n, classes = probs.shape
    if labels.shape != (n,):
        raise InputError(f"labels must have shape ({n},) to match probs of shape {(n, classes)}, not {tuple(labels.shape)}")
    labels = labels.to(device=probs.device, dtype=torch.int64)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise InputError(f"labels must lie in 0..{classes - 1} for {classes} classes, not in {lowest}..{highest}")
    return labels


def check_labelled(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Require class probabilities and one label per row; returned in float64 and as int64."""
    wide = check_probs("probs", probs)
    return wide, check_labels(labels, wide)


def check_scores(name: str, scores: Tensor) -> Tensor:
    """Require a vector of scores without NaN (infinite scores are allowed); returned in float64."""
    check_floating(name, scores, ndim=1)
    if bool(scores.isnan().any()):
        raise InputError(f"{name} must not contain nan, which has no rank, but {int(scores.isnan().sum())} of {len(scores)} are")
    return scores.double()


def check_confidence(confidence: Tensor | None, probs: Tensor) -> Tensor:
    """The confidence of each row of ``probs``, by default its largest probability."""
    if confidence is None:
        return probs.amax(-1)
    confidence = check_scores("confidence", confidence).to(probs.device)
    if confidence.shape != probs.shape[:1]:
        raise InputError(f"confidence must have shape ({probs.shape[0]},), not {tuple(confidence.shape)}")
    return confidence


def check_same_shape(**values: Tensor) -> tuple[Tensor, ...]:
    """Require finite floating-point tensors of the same shape (no broadcasting); returned in float64."""
    shapes = {name: tuple(value.shape) for name, value in values.items() if isinstance(value, Tensor)}
    wide = []
    for name, value in values.items():
        check_floating(name, value)
        if not bool(value.isfinite().all()):
            raise InputError(f"{name} must be finite, but contains NaN or inf; remove these values first")
        wide.append(value.double())
    if len(set(shapes.values())) > 1:
        # (B,) and (B, 1) would broadcast to (B, B) and give a plausible but wrong number.
        raise InputError(f"all shapes must be equal, not {shapes}; reshape, for example with .squeeze(-1)")
    return tuple(value.to(wide[0].device) for value in wide)


def check_positive(name: str, value: Tensor) -> Tensor:
    """Require every element to be larger than zero."""
    if not bool((value > 0).all()):
        raise InputError(f"{name} must be positive, but the smallest value is {value.min().item():.6g}; add a floor")
    return value


def check_bins(n_bins: int) -> int:
    """Require at least one bin."""
    if n_bins < 1:
        raise InputError(f"n_bins must be at least 1, not {n_bins}")
    return n_bins
