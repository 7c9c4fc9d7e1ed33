"""Detection of out-of-distribution and of misclassified examples.

Scores follow one convention: larger means more in-distribution (the largest probability, or minus the entropy).
Equal scores are handled exactly: nothing depends on the order of the examples.
"""

from __future__ import annotations

import torch

from ltnode.metrics._checks import check_confidence, check_labels, check_probs, check_scores
from ltnode.metrics.classification import is_correct
from ltnode.metrics.ties import last_of_ties
from ltnode.typing import Float, Int, Tensor


def auroc(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Area under the ROC curve: ``P(s_in > s_out) + P(s_in = s_out) / 2`` (the Mann-Whitney statistic, midranks).

    Args:
        scores_in: (N,) scores of in-distribution examples, the positive class.
        scores_out: (M,) scores of out-of-distribution examples.

    Returns:
        The area in [0, 1]; 0.5 for scores that carry no information.
    """
    inside, outside = _check_pair(scores_in, scores_out)
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside, right=False).sum()
    below_or_equal = torch.searchsorted(ordered, inside, right=True).sum()
    # Integers up to the last division: exact for any number of ties.
    return int(below + below_or_equal) / (2 * inside.numel() * outside.numel())


def aupr_in(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Average precision with the in-distribution examples as the positive class.

    ``sum_k (R_k - R_{k-1}) P_k`` over the distinct thresholds from the largest score down, without interpolation.

    Args:
        scores_in: (N,) scores of in-distribution examples.
        scores_out: (M,) scores of out-of-distribution examples.

    Returns:
        The area in (0, 1].
    """
    return _average_precision(*_check_pair(scores_in, scores_out))


def aupr_out(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Average precision with the out-of-distribution examples as the positive class, ranked by minus the score.

    Args:
        scores_in: (N,) scores of in-distribution examples.
        scores_out: (M,) scores of out-of-distribution examples.

    Returns:
        The area in (0, 1].
    """
    inside, outside = _check_pair(scores_in, scores_out)
    return _average_precision(-outside, -inside)


def fpr95(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Share of out-of-distribution examples accepted when at least 95 % of the in-distribution ones are.

    The threshold is the largest t with ``P(s_in >= t) >= 0.95``, i.e. the ceil(0.95 N)-th largest in-distribution
    score; the value is ``P(s_out >= t)``. No interpolation between thresholds.

    Args:
        scores_in: (N,) scores of in-distribution examples.
        scores_out: (M,) scores of out-of-distribution examples.

    Returns:
        The false positive rate in [0, 1]; one minus it is "TNR at 95 % TPR".
    """
    inside, outside = _check_pair(scores_in, scores_out)
    accepted = -(-95 * inside.numel() // 100)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return (outside >= threshold).double().mean().item()


def detection_accuracy(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Largest balanced accuracy ``(P(s_in >= t) + P(s_out < t)) / 2`` over all thresholds t.

    Args:
        scores_in: (N,) scores of in-distribution examples.
        scores_out: (M,) scores of out-of-distribution examples.

    Returns:
        The accuracy in [0.5, 1], for equal prior probability of both kinds.
    """
    accepted_in, accepted_out = _accepted(*_check_pair(scores_in, scores_out))
    gain = accepted_in / accepted_in[-1] - accepted_out / accepted_out[-1]
    # The threshold above every score accepts nothing: gain 0.
    return 0.5 + 0.5 * max(gain.max().item(), 0.0)


def misclassification_auroc(
    probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None
) -> float:
    """AUROC of telling right from wrong predictions by their confidence.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.
        confidence: (B,) larger = more confident; the largest probability when None.

    Returns:
        The area in [0, 1]; nan when every prediction is right, or every one wrong.
    """
    wide = check_probs("probs", probs)
    correct = is_correct(wide, check_labels(labels, wide))
    score = check_confidence(confidence, wide)
    if bool(correct.all()) or not bool(correct.any()):
        return float("nan")
    return auroc(score[correct], score[~correct])


def _check_pair(scores_in: Tensor, scores_out: Tensor) -> tuple[Tensor, Tensor]:
    inside = check_scores("scores_in", scores_in)
    return inside, check_scores("scores_out", scores_out).to(inside.device)


def _accepted(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 counts of positives and negatives with a score of at least each distinct threshold, descending."""
    scores, order = torch.cat([positive, negative]).sort(descending=True)
    is_positive = (order < positive.numel()).double()
    last = last_of_ties(scores)
    accepted = is_positive.cumsum(0)[last]
    return accepted, (last + 1) - accepted


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    true_positives, false_positives = _accepted(positive, negative)
    precision = true_positives / (true_positives + false_positives)
    recall_steps = true_positives.diff(prepend=true_positives.new_zeros(1)) / positive.numel()
    return (recall_steps * precision).sum().item()
