"""Operating points: thresholds keep the requested shares, whatever the predictions, and are stored without loss."""

from __future__ import annotations

import json
import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ltnode import metrics
from ltnode.errors import CheckpointError, InputError
from ltnode.models import Prediction
from ltnode.trained.operating_point import (
    FILE,
    SCORES,
    OperatingPoint,
    abstention_threshold,
    acceptance_threshold,
    operating_point,
)

SHARES = st.integers(1, 1000).map(lambda k: k / 1000)
DISTINCT = st.lists(st.floats(0, 2.25, width=32), min_size=1, max_size=60, unique=True)
WITH_TIES = st.lists(st.sampled_from([0.0, 0.1, 0.1 + 2**-40, 0.7, 2.0]), min_size=1, max_size=60)


def point(**changes: object) -> OperatingPoint:
    values = {
        "coverage": 0.9, "entropy_threshold": 0.5, "ood_score": "entropy", "ood_threshold": -0.7, "ood_keeps": 0.95, "n": 10,
        "data": "ten examples", "accuracy": 0.8, "accuracy_kept": 0.9,
    }  # fmt: skip
    return OperatingPoint(**{**values, **changes})  # type: ignore[arg-type]


@given(DISTINCT, SHARES)
def test_the_answered_share_exceeds_the_coverage_by_less_than_one_example(values: list[float], coverage: float) -> None:
    """For distinct entropies, coverage <= share < coverage + 1/n. Counts are exact; 1e-9 covers the rounding of k/1000."""
    entropy = torch.tensor(values, dtype=torch.float64)
    share = (entropy <= abstention_threshold(entropy, coverage)).double().mean().item()
    assert coverage - 1e-9 <= share < coverage + 1 / len(values) + 1e-9


@given(WITH_TIES, SHARES)
def test_with_ties_no_smaller_threshold_would_do(values: list[float], coverage: float) -> None:
    """Equal entropies are answered together: enough of them at the threshold, too few below it (counts, exact up to 1e-9)."""
    entropy = torch.tensor(values, dtype=torch.float64)
    threshold = abstention_threshold(entropy, coverage)
    assert (entropy <= threshold).double().mean() >= coverage - 1e-9
    assert (entropy < threshold).double().mean() < coverage + 1e-9
    assert threshold in values


@given(WITH_TIES | DISTINCT, SHARES, SHARES)
def test_thresholds_are_monotone(values: list[float], one: float, other: float) -> None:
    """To answer more examples, a model must accept a larger entropy; to accept more examples, a lower score."""
    low, high = sorted((one, other))
    numbers = torch.tensor(values, dtype=torch.float64)
    assert abstention_threshold(numbers, low) <= abstention_threshold(numbers, high)
    assert acceptance_threshold(numbers, low) >= acceptance_threshold(numbers, high)


@given(WITH_TIES | DISTINCT, SHARES)
def test_acceptance_mirrors_abstention(values: list[float], share: float) -> None:
    """The k-th largest of s is minus the k-th smallest of -s, bit for bit."""
    numbers = torch.tensor(values, dtype=torch.float64)
    assert acceptance_threshold(numbers, share) == -abstention_threshold(-numbers, share)


def test_a_decimal_share_means_the_decimal_number() -> None:
    """0.07 of 100 are 7 examples; in binary the product is 7.000000000000001, whose ceiling is 8."""
    assert 0.07 * 100 > 7
    assert abstention_threshold(torch.arange(100.0), 0.07) == 6.0


def test_acceptance_at_95_is_the_threshold_of_fpr95(generator: torch.Generator) -> None:
    """`metrics.fpr95` is the share of out-of-distribution scores at or above our threshold."""
    inside, outside = torch.rand(101, generator=generator), torch.rand(53, generator=generator)
    threshold = acceptance_threshold(inside.double(), 0.95)
    assert metrics.fpr95(inside, outside) == (outside >= threshold).double().mean().item()


def test_scores_fall_with_the_uncertainty(generator: torch.Generator) -> None:
    """Reference: the metrics of the members' probabilities; 1e-15 is the rounding of two orders of summation."""
    prediction = Prediction("classification", torch.randn(4, 6, 3, dtype=torch.float64, generator=generator), torch.ones(4))
    split = metrics.uncertainty_split(prediction.member_probs)
    expected = {
        "max_probability": prediction.member_probs.mean(0).amax(1),
        "entropy": -split.total,
        "mutual_information": -split.epistemic,
    }
    assert SCORES.keys() == expected.keys()
    for name, score in SCORES.items():
        torch.testing.assert_close(score(prediction), expected[name], rtol=0, atol=1e-15)


def test_point_of_known_predictions() -> None:
    """Four predictions by hand: with coverage 1/2 the two most certain are answered, one of them wrongly; counts are exact."""
    probs = torch.tensor([[0.99, 0.01], [0.9, 0.1], [0.4, 0.6], [0.45, 0.55]], dtype=torch.float64)
    prediction = Prediction("classification", probs.log()[None], torch.ones(1))
    found = operating_point(prediction, torch.tensor([0, 1, 1, 1]), data="four", coverage=0.5, ood_keeps=0.75)
    assert found.entropy_threshold == pytest.approx(metrics.entropy(probs)[1].item(), abs=1e-15)
    assert found.ood_threshold == pytest.approx(0.6, abs=1e-15)
    assert (found.accuracy, found.accuracy_kept, found.n) == (0.75, 0.5, 4)
    assert [found.abstains(h) for h in prediction.entropy.tolist()] == [False, False, True, True]
    assert [found.is_ood(p) for p in prediction.probs.amax(1).tolist()] == [False, False, False, True]


def test_file_round_trip(tmp_path: Path) -> None:
    """All saved values are read again; a folder without an operating point gives None."""
    assert OperatingPoint.read(tmp_path) is None
    saved = point(weights="abc", samples=7)
    assert saved.save(tmp_path) == tmp_path / FILE
    assert OperatingPoint.read(tmp_path) == saved


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", "{\"format\": 1}", json.dumps({**point().to_json(), "n": 0}), json.dumps({**point().to_json(), "more": 1}),
     json.dumps({**point().to_json(), "ood_score": "magic"}), json.dumps({**point().to_json(), "entropy_threshold": math.nan}),
     json.dumps({**point().to_json(), "coverage": "0.9"})],
)  # fmt: skip
@pytest.mark.no_typecheck
def test_a_damaged_file_is_an_error(tmp_path: Path, content: str) -> None:
    """Wrong flags would be worse than no flags, so reading fails; the error names the file."""
    (tmp_path / FILE).write_text(content)
    with pytest.raises(CheckpointError, match=FILE):
        OperatingPoint.read(tmp_path)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan, True, "0.5"])
def test_impossible_shares(share: object) -> None:
    with pytest.raises(InputError, match="in \\(0, 1\\]"):
        abstention_threshold(torch.rand(3), share)  # type: ignore[arg-type]


def test_unknown_score_names_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'entropy'"):
        point(ood_score="entrop")
