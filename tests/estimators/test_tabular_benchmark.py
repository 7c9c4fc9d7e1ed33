"""The benchmark of the estimators: record, page and script agree."""

from __future__ import annotations

import json

import numpy as np
import pytest
from repository import load_script


@pytest.fixture(scope="module")
def tabular():
    return load_script("benchmarks/tabular.py")


@pytest.fixture(scope="module")
def record(tabular):
    return json.loads(tabular.RECORD.read_text(encoding="utf-8"))


def test_the_pages_show_the_record(tabular, record):
    """Rendering the record into a page leaves the page unchanged."""
    for page in tabular.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tabular.render(record, page) == text
        assert text.count(tabular.BEGIN) == 1


def test_the_record_is_complete(tabular, record):
    """Every data set, method and split occurs once, with its provenance; all values are finite and valid."""
    rows = record["rows"]
    splits = len(record["provenance"]["splits"])
    assert splits >= 3
    seen = {(row["data"], row["method"], row["seed"]) for row in rows}
    assert len(seen) == len(rows) == len(tabular.DATA) * len(tabular.METHODS) * splits
    assert {"ltnode", "git_commit", "scikit_learn", "torch", "device"} <= set(record["provenance"])
    for row in rows:
        assert np.isfinite([row["log_likelihood"], row["error"], row["cpu_seconds"]]).all()
        assert 0 <= row["calibration"] <= 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_baselines_predict_what_they_should(tabular, rng):
    """A cheap run of every baseline: probabilities lie on the simplex, standard deviations are positive."""
    x = rng.normal(size=(60, 2))
    for method in tabular.METHODS[1:4]:
        probs = tabular.classify(method, x, (x[:, 0] > 0).astype(int), x[:10], 0)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-9)
    for method in ("random forest", "Gaussian process"):
        mean, std = tabular.regress(method, x, 100 + 10 * x[:, 0], x[:10], 0)
        assert np.corrcoef(mean, x[:10, 0])[0, 1] > 0.9 and (std > 0).all()
