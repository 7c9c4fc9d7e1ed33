"""Small models compute with one thread unless told otherwise, and the setting of the process is restored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.threads import chosen_threads, using_threads
from ltnode.models import Ensemble


@pytest.fixture(autouse=True)
def three_threads():
    """A setting that neither an estimator nor the machine chooses."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "expected"), [("auto", 1), (2, 2)])
def test_fit_and_predict_use_the_threads_and_restore_the_setting(given, expected, monkeypatch):
    used = []
    original = Ensemble.predict
    monkeypatch.setattr(Ensemble, "predict", lambda *a, **k: used.append(torch.get_num_threads()) or original(*a, **k))
    X = np.random.default_rng(0).normal(size=(60, 2))
    clf = ltnode.LTNodeClassifier(max_epochs=1, width=4, n_threads=given, random_state=0).fit(X, X[:, 0] > 0)
    assert torch.get_num_threads() == 3
    clf.predict(X)
    clf.explain_distance(X[:2])
    assert torch.get_num_threads() == 3
    assert set(used) == {expected}


@pytest.mark.no_typecheck
def test_wide_models_keep_the_setting_and_nonsense_is_refused():
    assert chosen_threads("auto", 128) == 1 and chosen_threads("auto", 129) is None and chosen_threads(4, 8) == 4
    for wrong in (0, -1, "all", 1.5):
        with pytest.raises(InputError, match="n_threads"):
            chosen_threads(wrong, 8)


def test_the_setting_is_restored_after_errors_and_by_overlapping_threads():
    """The last of two overlapping blocks restores the setting from before the first, not that of the first."""
    with pytest.raises(ZeroDivisionError), using_threads(1):
        _ = 1 / 0
    assert torch.get_num_threads() == 3
    both, first_left = Barrier(2), Barrier(2)

    def block(first):
        with using_threads(1):
            both.wait(timeout=10)
            if not first:
                first_left.wait(timeout=10)
        if first:
            first_left.wait(timeout=10)
        return torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(block, (True, False))) == [3, 3]
    assert torch.get_num_threads() == 3
