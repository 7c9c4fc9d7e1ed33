"""The real image sets in the folder LTNODE_DATA."""

from __future__ import annotations

from pathlib import Path

import pytest

from ltnode.data import SPECS, Normalisation, load

# Well-known labels: the first five and the last three of each split.
LABELS = {
    "mnist": (60000, [5, 0, 4, 1, 9], [5, 6, 8], 10000, [7, 2, 1, 0, 4], [4, 5, 6]),
    "fashion-mnist": (60000, [9, 0, 0, 3, 0], [3, 0, 5], 10000, [9, 2, 1, 1, 6], [8, 1, 5]),
    "cifar10": (50000, [6, 9, 9, 4, 1], [9, 1, 1], 10000, [3, 8, 8, 0, 6], [5, 1, 7]),
    "svhn": (73257, [1, 9, 2, 3, 2], [1, 6, 9], 26032, [5, 2, 1, 0, 6], [7, 6, 7]),
}


@pytest.mark.parametrize("name", LABELS)
def test_a_real_set_has_its_counts_labels_and_constants(real_data_root: Path, name: str) -> None:
    """Mean and std per channel equal the published constants to 4 digits."""
    data = load(name, real_data_root)
    n_train, first, last, n_test, first_test, last_test = LABELS[name]
    assert (data.n_train, len(data.test)) == (n_train, n_test)
    assert (data.train.y[:5].tolist(), data.train.y[-3:].tolist()) == (first, last)
    assert (data.test.y[:5].tolist(), data.test.y[-3:].tolist()) == (first_test, last_test)
    fitted = Normalisation.fitted(data.train.x)
    assert [round(value, 4) for value in fitted.mean] == list(SPECS[name].normalise.mean)
    assert [round(value, 4) for value in fitted.std] == list(SPECS[name].normalise.std)
    assert data.verified
    assert data.source in ("official", SPECS[name].content_source)
