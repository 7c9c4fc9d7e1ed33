"""Calibration errors, reliability diagrams and temperature scaling."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import accepts_numpy, check_bins, check_floating, check_labelled, check_labels
from ltnode.metrics.classification import PROBABILITY_FLOOR, is_correct
from ltnode.metrics.ties import average_over_ties
from ltnode.typing import Float, Int, Tensor

TEMPERATURE_RANGE = (1e-2, 1e2)
"""Search range of :func:`fit_temperature`."""


class Reliability(NamedTuple):
    """Table with one row per equal-width bin of the largest probability; float64 on the device of the probabilities.

    Attributes:
        lower: Lower edges, (K,), inclusive.
        upper: Upper edges, (K,), exclusive except for the last bin.
        counts: Number of examples, (K,), int64.
        accuracy: Share of correct predictions, (K,), NaN in an empty bin.
        confidence: Mean of the largest probability, (K,), NaN in an empty bin.
    """

    lower: Float[Tensor, " K"]
    upper: Float[Tensor, " K"]
    counts: Int[Tensor, " K"]
    accuracy: Float[Tensor, " K"]
    confidence: Float[Tensor, " K"]


@accepts_numpy
def reliability(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> Reliability:
    """The data of a reliability diagram: accuracy and mean confidence per bin of the largest probability.

    Bin k is ``[k / n_bins, (k + 1) / n_bins)``; the last bin is closed and includes the probability 1. The edges are rounded to
    the dtype of ``probs``, so that the float32 probability 0.7 lies in ``[0.7, 0.8)``.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=2).counts
    tensor([0, 2])
    """
    wide, labels = check_labelled(probs, labels)
    confidence = wide.amax(1)
    index = _bin_index(confidence, probs.dtype, check_bins(n_bins))
    ones = torch.ones_like(confidence)
    count = ones.new_zeros(n_bins).index_add_(0, index, ones)
    hits = ones.new_zeros(n_bins).index_add_(0, index, is_correct(wide, labels).double())
    mass = ones.new_zeros(n_bins).index_add_(0, index, confidence)
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=probs.device) / n_bins
    return Reliability(edges[:-1], edges[1:], count.long(), hits / count, mass / count)


@accepts_numpy
def ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Expected calibration error ``sum_k (n_k / N) |accuracy_k - confidence_k|`` of the predicted class.

    The bins are those of :func:`reliability`: equal width, ``[lo, hi)``, the last one closed. Empty bins contribute zero.

    >>> round(ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
    0.35
    """
    table = reliability(probs, labels, n_bins)
    gap = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    return (table.counts * gap).sum().item() / labels.shape[0]


@accepts_numpy
def adaptive_ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Expected calibration error over bins of equal count (Nixon et al., 2019, for the predicted class).

    The examples are sorted by their largest probability and split into ``n_bins`` groups whose sizes differ by at most one (the
    first groups are the larger ones). Each example counts with the mean accuracy of all examples of the same confidence, so that
    the value does not depend on the order of the examples.

    >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=1), 4)
    0.25
    """
    wide, labels = check_labelled(probs, labels)
    confidence, order = wide.amax(1).sort()
    accuracy = average_over_ties(confidence, is_correct(wide, labels)[order].double())
    runs = (accuracy - confidence).tensor_split(check_bins(n_bins))
    return sum(run.sum().abs().item() for run in runs) / labels.shape[0]


@accepts_numpy
def classwise_ece(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], n_bins: int = 10) -> float:
    """Mean over the classes of the calibration error of each class probability (Kull et al., 2019).

    For class c: ``sum_k (n_kc / N) |frequency of c in bin k - mean p_c in bin k|`` over equal-width bins of ``p_c`` as
    in :func:`reliability`. A class without examples contributes the probability that it received.

    >>> round(classwise_ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
    0.35
    """
    wide, labels = check_labelled(probs, labels)
    index = _bin_index(wide, probs.dtype, check_bins(n_bins))
    residual = torch.nn.functional.one_hot(labels, wide.shape[1]) - wide
    # n_k / N |frequency - mean p| equals |sum of residuals| / N, also for an empty bin.
    gaps = wide.new_zeros(n_bins, wide.shape[1]).scatter_add_(0, index, residual)
    return gaps.abs().sum().item() / wide.numel()


@accepts_numpy
def fit_temperature(log_probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """The temperature T that minimises the negative log-likelihood of ``softmax(log_probs / T)`` on held-out data.

    T > 1 means that the predictions were overconfident. ``log_probs`` are log-probabilities or logits, clamped below at
    ``ln 1e-40``. The objective is convex in 1/T, so bisection of its derivative in ln T finds the minimum to a relative 1e-12. If
    there is none (a perfect or an anti-correlated predictor), the nearer end of ``TEMPERATURE_RANGE`` is returned.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 4)
    1.8205
    """
    normalised = _check_log_probs(log_probs).log_softmax(1).clamp_min(math.log(PROBABILITY_FLOOR))
    labels = check_labels(labels, normalised)
    chosen = normalised.gather(1, labels[:, None]).mean()

    def slope(log_temperature: int | float) -> float:
        """Derivative of the mean negative log-likelihood in 1/T, which increases with 1/T."""
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


@accepts_numpy
def apply_temperature(log_probs: Float[Tensor, "B C"], temperature: int | float) -> Float[Tensor, "B C"]:
    """Log-probabilities ``log_softmax(log_probs / T)`` for T > 0, in the dtype of the input.

    >>> apply_temperature(torch.tensor([[2.0, 0.0]]), 2.0).exp()
    tensor([[0.7311, 0.2689]])
    """
    if not temperature > 0 or math.isinf(temperature):
        raise InputError(f"temperature must be positive and finite, not {temperature}; use fit_temperature")
    return (_check_log_probs(log_probs) / temperature).log_softmax(1).to(log_probs.dtype)


def _check_log_probs(log_probs: Tensor) -> Tensor:
    wide = check_floating("log_probs", log_probs, ndim=2).double()
    if not bool((wide.isfinite().any(1) & (wide < math.inf).all(1)).all()):
        raise InputError("log_probs must not contain nan, +inf, or a row with only -inf; pass logarithms of probabilities")
    return wide


def _bin_index(values: Tensor, dtype: torch.dtype, n_bins: int) -> Tensor:
    """Index of the bin ``[k / n_bins, (k + 1) / n_bins)`` that contains each value; the last bin is closed."""
    inner = torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins
    # The values are rounded to their dtype; rounding the edges in the same way puts 0.7 on the edge 0.7.
    return torch.bucketize(values, inner.to(dtype).double(), right=True)
