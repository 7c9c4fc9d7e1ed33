"""Selective prediction: risk-coverage, confidence and rejection curves, and entropy histograms."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import accepts_numpy, check_confidence, check_labels, check_probs, check_scores
from ltnode.metrics.classification import entropy, is_correct
from ltnode.metrics.ties import average_over_ties
from ltnode.typing import Float, Int, Tensor


class RiskCoverage(NamedTuple):
    """Error of the k most confident predictions, k = 1..B.

    Attributes:
        coverage: Share k / B of the retained predictions, (B,), ascending.
        risk: Share of wrong predictions among the retained ones, (B,).
    """

    coverage: Float[Tensor, " B"]
    risk: Float[Tensor, " B"]


class ConfidenceCurve(NamedTuple):
    """Accuracy and number of the predictions whose confidence reaches a threshold.

    Attributes:
        threshold: 0, 0.01, ..., 1.
        accuracy: Share of correct predictions, (101,), NaN if none remains.
        counts: Number of remaining predictions, (101,), int64.
    """

    threshold: Float[Tensor, " 101"]
    accuracy: Float[Tensor, " 101"]
    counts: Int[Tensor, " 101"]


class RejectionCurve(NamedTuple):
    """Accuracy of the retained data when the most uncertain share of the pooled data is rejected.

    Attributes:
        rejected: Rejected share 0, 0.005, ..., 0.995, (200,).
        accuracy: Share of correct predictions among the retained ones, (200,).
    """

    rejected: Float[Tensor, " 200"]
    accuracy: Float[Tensor, " 200"]


class EntropyHistogram(NamedTuple):
    """Number of examples per interval of entropy.

    Attributes:
        edges: Edges in nats, (K + 1,).
        counts: Number of entropies in ``[lo, hi)``, (K,), int64; the last interval is closed.
    """

    edges: Float[Tensor, " K+1"]
    counts: Int[Tensor, " K"]


@accepts_numpy
def risk_coverage(
    probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None
) -> RiskCoverage:
    """Error of the k most confident predictions for k = 1..B, in float64.

    Within a tie in confidence, the risk is the expectation over a random order.

    >>> risk_coverage(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).risk
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    wide = check_probs("probs", probs)
    wrong = ~is_correct(wide, check_labels(labels, wide))
    retained = torch.arange(1, wrong.numel() + 1, dtype=torch.float64, device=wide.device)
    errors = _errors_of_first(-check_confidence(confidence, wide), wrong)
    return RiskCoverage(retained / wrong.numel(), errors / retained)


@accepts_numpy
def aurc(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None) -> float:
    """Area under the risk-coverage curve: mean risk over the coverages 1/B, ..., 1 (Geifman et al., 2019).

    >>> aurc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.25
    """
    return risk_coverage(probs, labels, confidence).risk.mean().item()


@accepts_numpy
def confidence_curve(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> ConfidenceCurve:
    """Accuracy and number of the predictions whose largest probability is at least tau, for tau = 0, 0.01, ..., 1.

    The thresholds are rounded to the dtype of ``probs``, so that the float32 probability 0.7 reaches tau = 0.7.

    >>> confidence_curve(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).counts[[0, 75, 100]]
    tensor([2, 1, 0])
    """
    wide = check_probs("probs", probs)
    correct = is_correct(wide, check_labels(labels, wide))
    confidence, order = wide.amax(1).sort()
    threshold = torch.arange(101, dtype=torch.float64, device=wide.device) / 100
    below = torch.searchsorted(confidence, threshold.to(probs.dtype).double())
    # hits[k] is the number of correct predictions among the k least confident ones.
    hits = torch.cat([below.new_zeros(1), correct[order].long().cumsum(0)])
    count = correct.numel() - below
    return ConfidenceCurve(threshold, (hits[-1] - hits[below]).double() / count, count)


@accepts_numpy
def rejection_curve(
    probs_in: Float[Tensor, "N C"], labels_in: Int[Tensor, " N"], probs_out: Float[Tensor, "M C"]
) -> RejectionCurve:
    """Accuracy on pooled in- and out-of-distribution data after rejecting the most uncertain share.

    Both sets are pooled without balancing their sizes, every out-of-distribution example counts as an error, and the
    ``floor(r (N + M))`` examples of largest entropy are rejected for r = 0, 0.005, ..., 0.995. Within a tie in entropy, the
    accuracy is the expectation over a random order.

    >>> curve = rejection_curve(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), torch.tensor([[0.5, 0.5]]))
    >>> curve.accuracy[[0, 100]]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    wide = check_probs("probs_in", probs_in)
    outside = check_probs("probs_out", probs_out).to(wide.device)
    if outside.shape[1] != wide.shape[1]:
        raise InputError(f"probs_in and probs_out must have equal numbers of classes, not {wide.shape[1]} and {outside.shape[1]}")
    wrong_in = ~is_correct(wide, check_labels(labels_in, wide))
    wrong = torch.cat([wrong_in, torch.ones(outside.shape[0], dtype=torch.bool, device=wide.device)])
    errors = _errors_of_first(entropy(torch.cat([wide, outside])), wrong)
    steps = torch.arange(200, device=wide.device)
    # Integer arithmetic, because 0.29 * 100 in floating point is below 29.
    retained = wrong.numel() - steps * wrong.numel() // 200
    return RejectionCurve(steps.double() / 200, 1 - errors[retained - 1] / retained)


@accepts_numpy
def entropy_histogram(entropies: Float[Tensor, " B"], upper: int | float = 2.5, width: float = 0.01) -> EntropyHistogram:
    """Histogram of entropies in nats over [0, upper], by default in 250 intervals; C classes need ``upper >= ln C``.

    >>> entropy_histogram(torch.tensor([0.1, 0.2, 0.6]), upper=1.0, width=0.5).counts
    tensor([2, 1])
    """
    values = check_scores("entropies", entropies)
    if not 0 < width <= upper < float("inf"):
        raise InputError(f"width must lie in (0, upper] with a finite upper, not width {width} and upper {upper}")
    lowest, highest = values.min().item(), values.max().item()
    if lowest < 0 or highest > upper:
        raise InputError(
            f"entropies must lie in [0, {upper}], not in [{lowest:.6g}, {highest:.6g}]; pass upper >= ln C for C classes"
        )
    bins = max(round(upper / width), 1)
    edges = torch.arange(bins + 1, dtype=torch.float64, device=values.device) * (upper / bins)
    index = torch.bucketize(values, edges[1:-1].contiguous(), right=True)
    return EntropyHistogram(edges, torch.bincount(index, minlength=bins))


def _errors_of_first(uncertainty: Tensor, wrong: Tensor) -> Tensor:
    """Expected number of errors among the k least uncertain examples, (N,), k = 1..N."""
    ordered, order = uncertainty.sort()
    return average_over_ties(ordered, wrong[order].double()).cumsum(0)
