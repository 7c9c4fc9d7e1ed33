"""Prediction with the option to abstain: risk against coverage, confidence and rejection curves, entropy histogram."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import check_confidence, check_labels, check_probs, check_scores
from ltnode.metrics.classification import entropy, is_correct
from ltnode.metrics.ties import average_over_ties
from ltnode.typing import Float, Int, Tensor


class RiskCoverage(NamedTuple):
    """Error of the k most confident predictions, k = 1..B.

    Attributes:
        coverage: (B,) kept share k / B, ascending.
        risk: (B,) share of wrong predictions among the kept.
    """

    coverage: Float[Tensor, " B"]
    risk: Float[Tensor, " B"]


class ConfidenceCurve(NamedTuple):
    """Accuracy and number of the predictions at least as confident as a threshold.

    Attributes:
        threshold: (101,) 0, 0.01, ..., 1.
        accuracy: (101,) share of correct predictions, nan where none is left.
        counts: (101,) int64 number of predictions left.
    """

    threshold: Float[Tensor, " 101"]
    accuracy: Float[Tensor, " 101"]
    counts: Int[Tensor, " 101"]


class RejectionCurve(NamedTuple):
    """Accuracy of what is kept when the most uncertain share of the pooled data is rejected.

    Attributes:
        rejected: (200,) rejected share 0, 0.005, ..., 0.995.
        accuracy: (200,) share of correct predictions among the kept.
    """

    rejected: Float[Tensor, " 200"]
    accuracy: Float[Tensor, " 200"]


class EntropyHistogram(NamedTuple):
    """Numbers of examples per interval of entropy.

    Attributes:
        edges: (K + 1,) edges in nats.
        counts: (K,) int64 counts of ``[lo, hi)``, the last interval closed.
    """

    edges: Float[Tensor, " K+1"]
    counts: Int[Tensor, " K"]


def risk_coverage(
    probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None
) -> RiskCoverage:
    """Error of the k most confident predictions for k = 1..B.

    Among predictions of equal confidence the risk is the expectation over a random order of them.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        confidence: (B,) larger = more confident; the largest probability when None.

    Returns:
        The curve in float64.
    """
    wide = check_probs("probs", probs)
    wrong = ~is_correct(wide, check_labels(labels, wide))
    kept = torch.arange(1, wrong.numel() + 1, dtype=torch.float64, device=wide.device)
    return RiskCoverage(kept / wrong.numel(), _errors_of_first(-check_confidence(confidence, wide), wrong) / kept)


def aurc(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None) -> float:
    """Area under the risk-coverage curve: the mean risk over the coverages 1/B, ..., 1 (Geifman et al., 2019).

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        confidence: (B,) larger = more confident; the largest probability when None.

    Returns:
        The area in [0, 1] (smaller is better).
    """
    return risk_coverage(probs, labels, confidence).risk.mean().item()


def confidence_curve(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> ConfidenceCurve:
    """Accuracy and number of the predictions whose largest probability is at least tau, for tau = 0, 0.01, ..., 1.

    The thresholds are rounded to the dtype of ``probs``: a float32 probability written 0.7 reaches tau = 0.7.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.

    Returns:
        The curve.
    """
    wide = check_probs("probs", probs)
    correct = is_correct(wide, check_labels(labels, wide))
    confidence, order = wide.amax(1).sort()
    threshold = torch.arange(101, dtype=torch.float64, device=wide.device) / 100
    below = torch.searchsorted(confidence, threshold.to(probs.dtype).double())
    # hits[k]: correct predictions among the k least confident.
    hits = torch.cat([below.new_zeros(1), correct[order].long().cumsum(0)])
    count = correct.numel() - below
    return ConfidenceCurve(threshold, (hits[-1] - hits[below]).double() / count, count)


def rejection_curve(
    probs_in: Float[Tensor, "N C"], labels_in: Int[Tensor, " N"], probs_out: Float[Tensor, "M C"]
) -> RejectionCurve:
    """Accuracy on pooled in- and out-of-distribution data after rejecting the most uncertain share.

    Both sets are pooled as they are (unequal sizes kept), every out-of-distribution example counts as an error, and the
    ``floor(r (N + M))`` examples of largest entropy are rejected for r = 0, 0.005, ..., 0.995. Among examples of equal
    entropy the accuracy is the expectation over a random order of them.

    Args:
        probs_in: (N, C) probabilities of in-distribution examples.
        labels_in: (N,) their class indices.
        probs_out: (M, C) probabilities of out-of-distribution examples.

    Returns:
        The curve in float64.
    """
    wide = check_probs("probs_in", probs_in)
    outside = check_probs("probs_out", probs_out).to(wide.device)
    if outside.shape[1] != wide.shape[1]:
        raise InputError(f"probs_in has {wide.shape[1]} classes and probs_out {outside.shape[1]}: both must come from one model.")
    wrong_in = ~is_correct(wide, check_labels(labels_in, wide))
    wrong = torch.cat([wrong_in, torch.ones(outside.shape[0], dtype=torch.bool, device=wide.device)])
    errors = _errors_of_first(entropy(torch.cat([wide, outside])), wrong)
    steps = torch.arange(200, device=wide.device)
    # Integer arithmetic: r N in floating point would floor 0.29 * 100 to 28.
    kept = wrong.numel() - steps * wrong.numel() // 200
    return RejectionCurve(steps.double() / 200, 1 - errors[kept - 1] / kept)


def entropy_histogram(entropies: Float[Tensor, " B"], upper: int | float = 2.5, width: float = 0.01) -> EntropyHistogram:
    """Histogram of entropies over [0, upper] in intervals of ``width`` nats, 250 of them by default.

    Args:
        entropies: (B,) entropies in nats, for instance from :func:`entropy`.
        upper: right end of the last interval; 2.5 covers up to 12 classes, take at least ``ln C`` for C classes.
        width: width of an interval.

    Returns:
        Edges and counts.
    """
    values = check_scores("entropies", entropies)
    if not 0 < width <= upper < float("inf"):
        raise InputError(f"width must lie in (0, upper] with a finite upper, got width {width} and upper {upper}.")
    lowest, highest = values.min().item(), values.max().item()
    if lowest < 0 or highest > upper:
        raise InputError(
            f"entropies must lie in [0, {upper}], got [{lowest:.6g}, {highest:.6g}]: pass upper >= ln C for C classes."
        )
    bins = max(round(upper / width), 1)
    edges = torch.arange(bins + 1, dtype=torch.float64, device=values.device) * (upper / bins)
    index = torch.bucketize(values, edges[1:-1].contiguous(), right=True)
    return EntropyHistogram(edges, torch.bincount(index, minlength=bins))


def _errors_of_first(uncertainty: Tensor, wrong: Tensor) -> Tensor:
    """(N,) expected number of errors among the k least uncertain examples, k = 1..N."""
    ordered, order = uncertainty.sort()
    return average_over_ties(ordered, wrong[order].double()).cumsum(0)
