"""The three parts of a training set: disjoint, complete, seeded, and large enough to calibrate where the set allows it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltnode.data import gap_data
from ltnode.data.parts import SMALLEST_CALIBRATION, split_parts
from ltnode.errors import InputError

FRACTION = st.one_of(st.just(0.0), st.floats(0.01, 0.6))


@given(n=st.integers(2, 400), validation=FRACTION, calibration=FRACTION, seed=st.integers(0, 2**32))
def test_parts_are_disjoint_complete_and_leave_something_to_train_on(n: int, validation: float, calibration: float, seed: int):
    parts = split_parts(n, validation, calibration, seed)
    together = torch.cat([parts.fit, parts.validation, parts.calibration])
    assert sorted(together.tolist()) == list(range(n)) and len(parts.fit) > 0
    again = split_parts(n, validation, calibration, seed)
    assert parts.checksums() == again.checksums()
    assert (len(parts.validation) > 0) == (validation > 0)


@given(n=st.integers(2, 200), validation=st.floats(0.01, 0.9), seed=st.integers(0, 1000))
def test_the_validation_part_does_not_depend_on_the_calibration_part(n: int, validation: float, seed: int):
    """Reference: `Dataset.with_validation`, which earlier versions used; runs that they wrote must keep their split."""
    data = gap_data(n)
    rest, held_out = data.with_validation(validation, seed)
    alone, both = split_parts(n, validation, 0.0, seed), split_parts(n, validation, 0.05, seed)
    assert torch.equal(alone.validation, both.validation)
    assert torch.equal(data.train.x[alone.validation], held_out.x)
    assert torch.equal(data.train.x[alone.fit], rest.train.x)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(50_000, 2500), (1000, 50), (133, 19), (38, 19), (37, 12), (3, 1), (2, 0)],
    ids=["5 %", "5 % of 1000", "at least 19", "19 remain", "a third", "one", "none"],
)
def test_the_calibration_part_has_nineteen_examples_where_as_many_remain(n: int, expected: int):
    """With fewer than 19 examples, a p-value of 0.05 is not possible: 1 / (18 + 1) > 0.05."""
    assert len(split_parts(n, 0.0, 0.05, 0).calibration) == expected
    assert 1 / (SMALLEST_CALIBRATION + 1) == 0.05


def test_another_seed_gives_other_parts_and_other_checksums():
    one, two = split_parts(100, 0.1, 0.2, 0), split_parts(100, 0.1, 0.2, 1)
    assert all(one.checksums()[name] != two.checksums()[name] for name in one.checksums())
    assert split_parts(100, 0.1, 0.0, 0).checksums()["calibration_indices"] is None


@pytest.mark.parametrize(("n", "fractions", "words"), [(10, (1.0, 0.0), "< 1"), (10, (0.0, -0.1), ">= 0"), (1, (0.1, 0.0), "2")])
def test_impossible_parts_are_refused(n: int, fractions: tuple[float, float], words: str):
    with pytest.raises(InputError, match=words):
        split_parts(n, *fractions, seed=0)
