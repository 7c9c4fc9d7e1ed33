"""Detection of out-of-distribution and of misclassified examples.

Larger scores mean more in-distribution, for example the largest probability or the negative entropy. Ties are handled exactly,
so that results do not depend on the order of the examples.
"""

from __future__ import annotations

import torch

from ltnode.metrics._checks import accepts_numpy, check_confidence, check_labels, check_probs, check_scores
from ltnode.metrics.classification import is_correct
from ltnode.metrics.ties import last_of_ties
from ltnode.typing import Float, Int, Tensor


@accepts_numpy
def auroc(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Area under the ROC curve: ``P(s_in > s_out) + P(s_in = s_out) / 2``; 0.5 for uninformative scores.

    >>> auroc(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    0.75
    """
    inside, outside = _check_pair(scores_in, scores_out)
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside, right=False).sum()
    below_or_equal = torch.searchsorted(ordered, inside, right=True).sum()
    # Integer arithmetic up to the division is exact for any number of ties.
    return int(below + below_or_equal) / (2 * inside.numel() * outside.numel())


@accepts_numpy
def aupr_in(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Average precision with the in-distribution examples as the positive class.

    ``sum_k (R_k - R_{k-1}) P_k`` over the distinct thresholds in descending order, without interpolation.

    >>> round(aupr_in(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0])), 4)
    0.8056
    """
    return _average_precision(*_check_pair(scores_in, scores_out))


@accepts_numpy
def aupr_out(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Average precision with the out-of-distribution examples as the positive class, ranked by the negative score.

    >>> aupr_out(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    0.75
    """
    inside, outside = _check_pair(scores_in, scores_out)
    return _average_precision(-outside, -inside)


@accepts_numpy
def fpr95(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """False positive rate ``P(s_out >= t)`` at the threshold t that accepts at least 95 % of the in-distribution examples.

    t is the ceil(0.95 N)-th largest in-distribution score, without interpolation. 1 - fpr95 is known as "TNR at 95 % TPR".

    >>> fpr95(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    0.5
    """
    inside, outside = _check_pair(scores_in, scores_out)
    accepted = -(-95 * inside.numel() // 100)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return (outside >= threshold).double().mean().item()


@accepts_numpy
def detection_accuracy(scores_in: Float[Tensor, " N"], scores_out: Float[Tensor, " M"]) -> float:
    """Largest balanced accuracy ``(P(s_in >= t) + P(s_out < t)) / 2`` over all thresholds t; at least 0.5.

    >>> detection_accuracy(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    0.75
    """
    accepted_in, accepted_out = _accepted(*_check_pair(scores_in, scores_out))
    gain = accepted_in / accepted_in[-1] - accepted_out / accepted_out[-1]
    # A threshold above all scores accepts nothing and has gain 0.
    return 0.5 + 0.5 * max(gain.max().item(), 0.0)


@accepts_numpy
def misclassification_auroc(
    probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], confidence: Float[Tensor, " B"] | None = None
) -> float:
    """AUROC of the confidence as a score for correct predictions; NaN if all predictions are correct or all are wrong.

    >>> misclassification_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    1.0
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
    """Float64 counts of positives and negatives at or above each distinct threshold, in descending order."""
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
