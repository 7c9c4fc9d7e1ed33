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
from ltnode.trained.operating_point import FILE, OperatingPoint, abstention_threshold, operating_point

SHARES = st.integers(1, 1000).map(lambda k: k / 1000)
DISTINCT = st.lists(st.floats(0, 2.25, width=32), min_size=1, max_size=60, unique=True)
WITH_TIES = st.lists(st.sampled_from([0.0, 0.1, 0.1 + 2**-40, 0.7, 2.0]), min_size=1, max_size=60)


def point(**changes: object) -> OperatingPoint:
    values = {
        "coverage": 0.9, "entropy_threshold": 0.5, "n": 10, "data": "ten examples", "accuracy": 0.8, "accuracy_kept": 0.9,
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
    """To answer more examples, a model must accept a larger entropy."""
    low, high = sorted((one, other))
    numbers = torch.tensor(values, dtype=torch.float64)
    assert abstention_threshold(numbers, low) <= abstention_threshold(numbers, high)


def test_a_decimal_share_means_the_decimal_number() -> None:
    """0.07 of 100 are 7 examples; in binary the product is 7.000000000000001, whose ceiling is 8."""
    assert 0.07 * 100 > 7
    assert abstention_threshold(torch.arange(100.0), 0.07) == 6.0


def test_point_of_known_predictions() -> None:
    """Four predictions by hand: with coverage 1/2 the two most certain are answered, one of them wrongly; counts are exact."""
    probs = torch.tensor([[0.99, 0.01], [0.9, 0.1], [0.4, 0.6], [0.45, 0.55]], dtype=torch.float64)
    prediction = Prediction("classification", probs.log()[None], torch.ones(1))
    found = operating_point(prediction, torch.tensor([0, 1, 1, 1]), data="four", coverage=0.5, false_alarm_rate=0.1)
    assert found.entropy_threshold == pytest.approx(metrics.entropy(probs)[1].item(), abs=1e-15)
    assert found.false_alarm_rate == 0.1
    assert (found.accuracy, found.accuracy_kept, found.n) == (0.75, 0.5, 4)
    assert [found.abstains(h) for h in prediction.entropy.tolist()] == [False, False, True, True]


def test_file_round_trip(tmp_path: Path) -> None:
    """All saved values are read again; a folder without an operating point gives None."""
    assert OperatingPoint.read(tmp_path) is None
    saved = point(weights="abc", samples=7)
    assert saved.save(tmp_path) == tmp_path / FILE
    assert OperatingPoint.read(tmp_path) == saved


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", "{\"format\": 2}", json.dumps({**point().to_json(), "n": 0}), json.dumps({**point().to_json(), "more": 1}),
     json.dumps({**point().to_json(), "false_alarm_rate": 0}), json.dumps({**point().to_json(), "entropy_threshold": math.nan}),
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


@pytest.mark.no_typecheck
@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan, True, "0.5"])
def test_impossible_rates(rate: object) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        point(false_alarm_rate=rate)


def test_format_1_is_read_without_its_score(tmp_path: Path) -> None:
    """An earlier release called inputs foreign by their largest probability; the rest of its file keeps its meaning."""
    new = point(weights="abc").to_json()
    del new["false_alarm_rate"]
    old = {**new, "format": 1, "ood_score": "max_probability", "ood_threshold": 0.4, "ood_keeps": 0.9}
    (tmp_path / FILE).write_text(json.dumps(old))
    assert OperatingPoint.read(tmp_path) == point(weights="abc")
