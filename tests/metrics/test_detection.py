"""Detection metrics compared with scikit-learn, with ties, and their properties.

The tolerance is 1e-12: counts are exact, and only the final divisions and short sums are rounded.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from ltnode import metrics
from ltnode.errors import InputError

EXACT = 1e-12
ALL = (metrics.auroc, metrics.aupr_in, metrics.aupr_out, metrics.fpr95, metrics.detection_accuracy)

# The first kind has few distinct values, so most pairs are tied; the second kind has hardly any ties.
tied = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=45)
generic = st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=45)
scores = st.one_of(st.tuples(tied, tied), st.tuples(generic, generic)).map(
    lambda pair: tuple(torch.tensor(values, dtype=torch.float64) for values in pair)
)


def pooled(inside: torch.Tensor, outside: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[np.ones(len(inside)), np.zeros(len(outside))], torch.cat([inside, outside]).numpy()


@given(scores)
def test_areas_equal_scikit_learn(case):
    """AUROC with midranks, and AUPR as average precision with either class as the positive one."""
    truth, values = pooled(*case)
    assert metrics.auroc(*case) == pytest.approx(sklearn_metrics.roc_auc_score(truth, values), abs=EXACT)
    assert metrics.aupr_in(*case) == pytest.approx(sklearn_metrics.average_precision_score(truth, values), abs=EXACT)
    oracle = sklearn_metrics.average_precision_score(1 - truth, -values)
    assert metrics.aupr_out(*case) == pytest.approx(oracle, abs=EXACT)


@given(scores)
def test_operating_points_equal_scikit_learns_roc_curve(case):
    """FPR at the first threshold with TPR >= 0.95, and the largest balanced accuracy of the curve."""
    fpr, tpr, _ = sklearn_metrics.roc_curve(*pooled(*case), drop_intermediate=False)
    assert metrics.fpr95(*case) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=EXACT)
    assert metrics.detection_accuracy(*case) == pytest.approx(0.5 + 0.5 * (tpr - fpr).max(), abs=EXACT)


def test_values_by_hand():
    """In: 3, 2, 1; out: 2, 0. Of 6 pairs 4 are ordered and 1 is tied; thresholds 3, 2, 1, 0 accept (1,0) (2,1) (3,1) (3,2)."""
    inside, outside = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0])
    assert metrics.auroc(inside, outside) == pytest.approx(4.5 / 6, abs=EXACT)
    assert metrics.aupr_in(inside, outside) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3, abs=EXACT)
    assert metrics.aupr_out(inside, outside) == pytest.approx((1 + 2 / 4) / 2, abs=EXACT)
    assert metrics.fpr95(inside, outside) == 0.5
    assert metrics.detection_accuracy(inside, outside) == pytest.approx(0.75, abs=EXACT)


def test_fpr95_accepts_exactly_19_of_20():
    """0.95 * 20 is an integer, so the lowest in-distribution score need not be accepted."""
    inside = torch.arange(20.0)
    assert metrics.fpr95(inside, torch.tensor([0.5, 1.0])) == 0.5
    assert metrics.fpr95(inside[:19], torch.tensor([-0.5, 0.5])) == 0.5


@given(scores)
def test_bounds_and_symmetries(case):
    """Values are in range; swapping the classes and the sign keeps AUROC and swaps the two AUPR."""
    inside, outside = case
    for function in ALL:
        assert 0 <= function(inside, outside) <= 1 + EXACT
    assert metrics.detection_accuracy(inside, outside) >= 0.5
    assert metrics.auroc(inside, outside) + metrics.auroc(outside, inside) == pytest.approx(1, abs=EXACT)
    assert metrics.aupr_in(-outside, -inside) == pytest.approx(metrics.aupr_out(inside, outside), abs=EXACT)


@given(scores, st.randoms(use_true_random=False))
def test_only_ranks_matter(case, random):
    """Neither the order of the examples nor an increasing map matters (doubling is exact in floating point)."""
    inside, outside = case
    order = list(range(len(inside)))
    random.shuffle(order)
    for function in ALL:
        assert function(2 * inside[order], 2 * outside) == pytest.approx(function(inside, outside), abs=EXACT)


def test_perfect_constant_and_infinite_scores():
    """Separable scores give ideal values, constant scores chance level; infinite scores are ranked like any other."""
    inside, outside = torch.tensor([2.0, math.inf]), torch.tensor([-math.inf, 1.0, 0.0])
    assert [f(inside, outside) for f in ALL] == [1, 1, 1, 0, 1]
    constant = torch.zeros(5), torch.zeros(3)
    assert [f(*constant) for f in ALL] == pytest.approx([0.5, 5 / 8, 3 / 8, 1, 0.5], abs=EXACT)


def test_large_samples_stay_exact():
    """The 4e10 pairs of 200,000 + 200,000 tied scores are counted in integers; float32 counts end at 1.7e7."""
    inside = (torch.arange(200_000) % 3).float()
    outside = (torch.arange(200_000) % 2).float()
    truth, values = pooled(inside, outside)
    assert metrics.auroc(inside, outside) == pytest.approx(sklearn_metrics.roc_auc_score(truth, values), abs=EXACT)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("inside", "match"),
    [
        (torch.tensor([math.nan]), "nan"),
        (torch.zeros(0), "empty"),
        (torch.zeros(2, 1), "dimension"),
        (torch.tensor([1]), "floating"),
        ([1.0], "torch.Tensor"),
    ],
)
def test_bad_scores_are_refused(inside, match):
    """Both arguments are checked, and the message names the invalid one."""
    for function in ALL:
        with pytest.raises(InputError, match=match):
            function(inside, torch.tensor([0.0]))
        with pytest.raises(InputError, match="scores_out"):
            function(torch.tensor([0.0]), inside)


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_numbers():
    """Counts are exact on any device."""
    inside, outside = torch.randn(2000).round(decimals=1), torch.randn(3000).round(decimals=1) - 1
    for function in ALL:
        assert function(inside.cuda(), outside.cuda()) == pytest.approx(function(inside, outside), abs=EXACT)
