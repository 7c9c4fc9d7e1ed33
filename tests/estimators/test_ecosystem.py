"""The estimators with scikit-learn's tools and MAPIE, and the package without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import ltnode

ROOT = Path(__file__).parents[2]
SHORT = {"max_epochs": 8, "batch_size": 32, "learning_rate": 0.015, "random_state": 0}


@pytest.fixture(scope="module")
def moons():
    return make_moons(150, noise=0.2, random_state=0)


def test_a_pipeline_trains_and_hands_its_methods_through(moons):
    """Quadratic features make the moons easier; `score_samples` works through the pipeline."""
    X, y = moons
    pipeline = make_pipeline(PolynomialFeatures(2), ltnode.LTNodeClassifier(**SHORT)).fit(X, y)
    assert pipeline.score(X, y) > 0.8
    assert pipeline.score_samples(X).shape == (150,)


@pytest.mark.no_typecheck
def test_a_grid_search_chooses_and_refits(moons):
    """A grid over end-times and widths. Widths are NumPy integers, as in NumPy grids; the checks must accept them."""
    grid = {"end_time": ["gamma", "fixed"], "width": np.array([4, 8])}
    search = GridSearchCV(ltnode.LTNodeClassifier(max_epochs=2, random_state=0), grid, cv=2, scoring="neg_log_loss").fit(*moons)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict_proba(moons[0]).shape == (150, 2)


def test_cross_validation_is_repeatable_and_does_not_depend_on_the_number_of_jobs(moons):
    """The scores in this process and in two others are identical."""
    scores = [cross_val_score(ltnode.LTNodeClassifier(**SHORT), *moons, cv=2, n_jobs=jobs) for jobs in (1, 2)]
    np.testing.assert_allclose(*scores, rtol=1e-12)


def test_it_can_be_calibrated(moons):
    """`CalibratedClassifierCV` wraps the classifier (sigmoid, 2 folds)."""
    model = CalibratedClassifierCV(ltnode.LTNodeClassifier(**SHORT), cv=2).fit(*moons)
    assert model.score(*moons) > 0.8


def test_out_of_fold_predictions_of_a_regressor(rng):
    """`cross_val_predict` on a straight line explains most of the variance."""
    X = rng.uniform(-1, 1, size=(120, 2))
    y = X @ [1.0, 2.0]
    out = cross_val_predict(ltnode.LTNodeRegressor(**SHORT), X, y, cv=2)
    assert np.corrcoef(out, y)[0, 1] > 0.9


def test_mapie_conformal_sets_cover(moons):
    """Prediction sets at 90 % on 400 new points; 100 calibration points give a standard error of 3 %, and 8 % is allowed."""
    conformal = pytest.importorskip("mapie.classification")
    model = ltnode.LTNodeClassifier(**SHORT).fit(*moons)
    X, y = make_moons(500, noise=0.2, random_state=1)
    sets = conformal.SplitConformalClassifier(model, confidence_level=0.9, prefit=True).conformalize(X[:100], y[:100])
    _, chosen = sets.predict_set(X[100:])
    covered = chosen[np.arange(400), y[100:], 0]
    assert covered.mean() > 0.82


def test_mapie_conformal_intervals_cover(rng):
    """As above for a regressor, with intervals of constant width."""
    conformal = pytest.importorskip("mapie.regression")
    X = rng.uniform(-2, 2, size=(650, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=650)
    model = ltnode.LTNodeRegressor(**SHORT).fit(X[:150], y[:150])
    intervals = conformal.SplitConformalRegressor(model, confidence_level=0.9, prefit=True).conformalize(X[150:250], y[150:250])
    _, bounds = intervals.predict_interval(X[250:])
    covered = (bounds[:, 0, 0] <= y[250:]) & (y[250:] <= bounds[:, 1, 0])
    assert 0.82 < covered.mean() < 0.98


def test_without_scikit_learn_the_package_works_and_the_error_names_the_extra():
    """In an interpreter without scikit-learn, everything else imports, and both names say what is missing."""
    code = """
import sys
sys.modules["sklearn"] = None
import ltnode
assert {"LTNodeClassifier", "LTNodeRegressor"} <= set(dir(ltnode)) & set(ltnode.__all__)
for name in ("LTNodeClassifier", "LTNodeRegressor"):
    try:
        getattr(ltnode, name)
    except ltnode.MissingExtraError as error:
        assert "pip install 'ltnode[sklearn]'" in str(error), error
    else:
        raise SystemExit("no error")
try:
    ltnode.LTNodeClasifier
except AttributeError:
    pass
else:
    raise SystemExit("an unknown name is an AttributeError")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_runs():
    """`examples/sklearn_pipeline.py` runs as a user would call it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "sklearn_pipeline.py")], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
