"""Rows that are unlike the training rows: their distance, what they are answered, and which rows decide about it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import datasets
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.parts import draw_parts

SHORT = {"max_epochs": 5, "random_state": 0}


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * [1, 10, 100, 0.1] + [0, 5, -50, 3]
    return X, (X[:, 0] + X[:, 1] / 10 > 0.5).astype(int)


@pytest.fixture(scope="module")
def fitted(table):
    return ltnode.LTNodeClassifier(**SHORT).fit(*table)


def test_the_three_parts_are_disjoint_recorded_and_as_large_as_promised(fitted, table):
    """300 rows: 19 calibrate (5 % would be 15), 15 % of the other 281 select, and every row belongs to one part."""
    select, calibrate = fitted.validation_rows_, fitted.calibration_rows_
    assert (len(select), len(calibrate)) == (42, 19)
    assert len(np.union1d(select, calibrate)) == 61
    assert fitted.model_.n_calibration == 19
    again = ltnode.LTNodeClassifier(**SHORT).fit(*table)
    np.testing.assert_array_equal(again.calibration_rows_, calibrate)
    other = ltnode.LTNodeClassifier(max_epochs=5, random_state=1).fit(*table)
    assert not np.array_equal(other.calibration_rows_, calibrate)


@pytest.mark.parametrize(
    ("rows", "early_stopping", "fraction", "sizes"),
    [
        (40, "auto", 0.05, (40, None, None)),
        (40, True, 0.05, (34, 6, None)),
        (99, "auto", 0.05, (84, 15, None)),
        (100, "auto", 0.05, (69, 12, 19)),
        (1000, "auto", 0.05, (808, 142, 50)),
        (1000, "auto", 0.0, (850, 150, None)),
        (1000, False, 0.05, (1000, None, None)),
    ],
)
def test_small_tables_keep_their_rows(rows, early_stopping, fraction, sizes):
    """Nothing is held out below 50 rows by default, and nothing for calibration below 100 or without early stopping."""
    parts = draw_parts(rows, None, early_stopping, 0.15, fraction, seed=0)
    found = [None if part is None else len(part) for part in (parts.fit, parts.select, parts.calibrate)]
    assert found == list(sizes)
    together = np.concatenate([part for part in (parts.fit, parts.select, parts.calibrate) if part is not None])
    np.testing.assert_array_equal(np.sort(together), np.arange(rows))


@pytest.mark.parametrize("kind", [ltnode.LTNodeClassifier, ltnode.LTNodeRegressor])
def test_calibration_rows_have_no_influence_on_the_model(kind, table):
    """Other values in these rows change nothing but the ranks: weights, standardisation and distances stay, bit for bit."""
    X, y = table
    one = kind(**SHORT).fit(X, y)
    changed, labels = X.copy(), y.copy()
    changed[one.calibration_rows_] *= 7
    labels[one.calibration_rows_] = 1
    other = kind(**SHORT).fit(changed, labels)
    np.testing.assert_array_equal(one.calibration_rows_, other.calibration_rows_)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    np.testing.assert_array_equal(one.score_samples(X), other.score_samples(X))
    u, v = one.predict_uncertainty(X), other.predict_uncertainty(X)
    assert not np.array_equal(u.familiarity, v.familiarity)


def test_a_fit_that_goes_on_does_not_train_on_calibration_rows(table):
    model = ltnode.LTNodeClassifier(max_epochs=2, warm_start=True).fit(*table)
    before = model.calibration_rows_
    np.testing.assert_array_equal(model.fit(*table).calibration_rows_, before)


def test_the_familiarity_is_the_rank_of_the_distance_among_the_calibration_rows(fitted, table):
    """Reference: the definition of the p-value; the calibration rows themselves are ties, which rounding may break."""
    X = table[0]
    u = fitted.predict_uncertainty(X)
    held_out = u.distance[fitted.calibration_rows_]
    expected = (1 + (held_out[None] >= u.distance[:, None]).sum(1)) / 20
    others = np.setdiff1d(np.arange(len(X)), fitted.calibration_rows_)
    np.testing.assert_allclose(u.familiarity[others], expected[others], rtol=1e-12)
    far = fitted.predict_uncertainty(X.mean(0) + 100 * X.std(0) * np.ones((1, 4)))
    assert far.familiarity[0] == pytest.approx(1 / 20)


def test_without_calibration_rows_the_familiarity_is_unknown_and_the_distance_known(table):
    X, y = table
    for model in (ltnode.LTNodeClassifier(**SHORT).fit(X[:90], y[:90]), ltnode.LTNodeRegressor(**SHORT).fit(X[:40], y[:40])):
        u = model.predict_uncertainty(X)
        assert np.isnan(u.familiarity).all() and np.isfinite(u.distance).all()
        assert model.calibration_rows_ is None


def test_a_stream_of_rows_has_no_distance_and_says_so(table):
    """`partial_fit` changes the weights, so that a distance fitted before would be that of another network."""
    X, y = table
    model = ltnode.LTNodeClassifier(**SHORT).fit(X, y).partial_fit(X, y)
    assert np.isnan(model.predict_uncertainty(X).distance).all()
    for method in (model.score_samples, model.explain_distance):
        with pytest.raises(InputError, match="partial_fit does not fit; call fit with all rows"):
            method(X)


def test_the_column_that_makes_a_row_unfamiliar_is_named(fitted, table):
    """One column of a typical row is moved by 20 standard deviations: it contributes most."""
    X = np.repeat(table[0].mean(0, keepdims=True), 4, axis=0)
    X[np.arange(4), np.arange(4)] += 20 * table[0].std(0)
    contributions = fitted.explain_distance(X)
    assert contributions.shape == (4, 4)
    np.testing.assert_array_equal(contributions.argmax(1), np.arange(4))
    assert (contributions.max(1) > 1).all()


def far_rows(X: np.ndarray, factor: float, seed: int) -> np.ndarray:
    """Rows drawn around the mean with ``factor`` times the standard deviation of each column."""
    return X.mean(0) + factor * X.std(0) * np.random.default_rng(seed).normal(size=(1000, X.shape[1]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["wine", "breast_cancer", "digits", "diabetes"])
def test_rows_far_from_the_training_rows_are_unfamiliar_and_answered_with_doubt(name):
    """Default estimators; the bounds are those that the documentation promises."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    regression = name == "diabetes"
    X, new, y, _ = train_test_split(X, y, test_size=0.2, random_state=0, stratify=None if regression else y)
    kind = ltnode.LTNodeRegressor if regression else ltnode.LTNodeClassifier
    model = kind(random_state=0).fit(X, y)
    familiar = model.score_samples(new)
    for factor, smallest in ((3, 0.95), (10, 0.99), (100, 0.99)):
        scores = np.concatenate([familiar, model.score_samples(far_rows(X, factor, 0))])
        assert roc_auc_score(np.arange(len(scores)) < len(familiar), scores) >= smallest
    far = far_rows(X, 10, 0)
    if regression:
        assert np.mean(model.predict(far, return_std=True)[1] >= y.std()) >= 0.99
    else:
        assert np.mean(model.predict_proba(far).max(1) > 0.99) <= 0.01
