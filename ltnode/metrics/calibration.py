"""Calibration errors, reliability diagrams and temperature scaling."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import check_bins, check_floating, check_labels, check_probs
from ltnode.metrics.classification import PROBABILITY_FLOOR, is_correct
from ltnode.metrics.ties import average_over_ties
from ltnode.typing import Float, Int, Tensor

TEMPERATURE_RANGE = (1e-2, 1e2)
"""The temperatures among which :func:`fit_temperature` searches."""


class Reliability(NamedTuple):
    """One row per equal-width bin of the largest probability; float64 on the device of the probabilities.

    Attributes:
        lower: (K,) lower edges, belonging to the bin.
        upper: (K,) upper edges, belonging to the next bin (the last one to the last bin).
        counts: (K,) int64 number of examples.
        accuracy: (K,) share of correct predictions, nan in an empty bin.
        confidence: (K,) mean of the largest probability, nan in an empty bin.
    """

    lower: Float[Tensor, " K"]
    upper: Float[Tensor, " K"]
    counts: Int[Tensor, " K"]
    accuracy: Float[Tensor, " K"]
    confidence: Float[Tensor, " K"]


def reliability(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> Reliability:
    """The table behind a reliability diagram: accuracy and mean confidence per bin of the largest probability.

    Bin k is ``[k / n_bins, (k + 1) / n_bins)``, the last one is closed, so that probability exactly 1 belongs to it.
    The edges are rounded to the dtype of ``probs``: a float32 probability written 0.7 lies in ``[0.7, 0.8)``.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        n_bins: number of bins K.

    Returns:
        The table.
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    confidence = wide.amax(1)
    index = _bin_index(confidence, probs.dtype, check_bins(n_bins))
    ones = torch.ones_like(confidence)
    count = ones.new_zeros(n_bins).index_add_(0, index, ones)
    hits = ones.new_zeros(n_bins).index_add_(0, index, is_correct(wide, labels).double())
    mass = ones.new_zeros(n_bins).index_add_(0, index, confidence)
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=probs.device) / n_bins
    return Reliability(edges[:-1], edges[1:], count.long(), hits / count, mass / count)


def ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Expected calibration error ``sum_k (n_k / N) |accuracy_k - confidence_k|`` of the predicted class.

    The bins are those of :func:`reliability`: equal width, ``[lo, hi)``, the last one closed; empty bins count nothing.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        n_bins: number of bins.

    Returns:
        The error in [0, 1].
    """
    table = reliability(probs, labels, n_bins)
    gap = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    return (table.counts * gap).sum().item() / labels.shape[0]


def adaptive_ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Expected calibration error over bins of equal count (Nixon et al., 2019, for the predicted class).

    The examples, ordered by their largest probability, are cut into ``n_bins`` runs whose sizes differ by at most one
    (the first runs are the longer ones). Examples of equal confidence are exchangeable: each carries the mean accuracy
    of all of them, so the value does not depend on the order of the examples.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        n_bins: number of bins.

    Returns:
        The error in [0, 1].
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    confidence, order = wide.amax(1).sort()
    accuracy = average_over_ties(confidence, is_correct(wide, labels)[order].double())
    runs = (accuracy - confidence).tensor_split(check_bins(n_bins))
    return sum(run.sum().abs().item() for run in runs) / labels.shape[0]


def classwise_ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Mean over the classes of the calibration error of each class probability (Kull et al., 2019).

    For class c: ``sum_k (n_kc / N) |frequency of c in bin k - mean p_c in bin k|`` over equal-width bins of ``p_c`` as
    in :func:`reliability`. A class without examples counts with the probability wrongly given to it.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        n_bins: number of bins.

    Returns:
        The error in [0, 1].
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    index = _bin_index(wide, probs.dtype, check_bins(n_bins))
    residual = torch.nn.functional.one_hot(labels, wide.shape[1]) - wide
    # n_k / N |frequency - mean p| is |sum of residuals| / N, also where a bin is empty.
    gaps = wide.new_zeros(n_bins, wide.shape[1]).scatter_add_(0, index, residual)
    return gaps.abs().sum().item() / wide.numel()


def fit_temperature(log_probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """The temperature T that minimises the negative log-likelihood of ``softmax(log_probs / T)`` on held-out data.

    The objective is convex in 1/T, so its one stationary point is found by bisection of the derivative in ln T, to a
    relative accuracy of 1e-12. Where none exists (a perfect or an anti-correlated predictor) the nearer end of
    ``TEMPERATURE_RANGE`` is returned. Log-probabilities enter with at least ``ln 1e-40``.

    Args:
        log_probs: (B, C) log-probabilities (the log of an averaged prediction) or logits.
        labels: (B,) class indices.

    Returns:
        The temperature; above 1 the predictions were overconfident.
    """
    normalised = _check_log_probs(log_probs).log_softmax(1).clamp_min(math.log(PROBABILITY_FLOOR))
    labels = check_labels(labels, normalised)
    chosen = normalised.gather(1, labels[:, None]).mean()

    def slope(log_temperature: int | float) -> float:
        """Derivative of the mean negative log-likelihood in 1/T; it increases with 1/T."""
        weights = (normalised / math.exp(log_temperature)).softmax(1)
        return ((weights * normalised).sum(1).mean() - chosen).item()

    cold, hot = (math.log(bound) for bound in TEMPERATURE_RANGE)
    if slope(cold) <= 0:
        return TEMPERATURE_RANGE[0]
    if slope(hot) >= 0:
        return TEMPERATURE_RANGE[1]
    while hot - cold > 1e-12:
        middle = 0.5 * (cold + hot)
        cold, hot = (middle, hot) if slope(middle) > 0 else (cold, middle)
    return math.exp(0.5 * (cold + hot))


def apply_temperature(log_probs: Float[Tensor, "B C"], temperature: int | float) -> Float[Tensor, "B C"]:
    """Log-probabilities ``log_softmax(log_probs / T)`` in the dtype of the input.

    Args:
        log_probs: (B, C) log-probabilities or logits.
        temperature: T > 0, for instance from :func:`fit_temperature`.

    Returns:
        (B, C) normalised log-probabilities.
    """
    if not temperature > 0 or math.isinf(temperature):
        raise InputError(f"temperature must be positive and finite, got {temperature}: use fit_temperature.")
    return (_check_log_probs(log_probs) / temperature).log_softmax(1).to(log_probs.dtype)


def _check_log_probs(log_probs: Tensor) -> Tensor:
    wide = check_floating("log_probs", log_probs, ndim=2).double()
    if not bool((wide.isfinite().any(1) & (wide < math.inf).all(1)).all()):
        raise InputError("log_probs hold nan, +inf, or a row of -inf only: pass finite logs of probabilities.")
    return wide


def _bin_index(values: Tensor, dtype: torch.dtype, n_bins: int) -> Tensor:
    """Index of the bin ``[k / n_bins, (k + 1) / n_bins)`` of each value, the last bin closed."""
    inner = torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins
    # Values were rounded to their dtype before they got here; edges rounded alike put 0.7 on the edge 0.7.
    return torch.bucketize(values, inner.to(dtype).double(), right=True)
