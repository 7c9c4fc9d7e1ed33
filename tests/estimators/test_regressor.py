"""`LTNodeRegressor`: means, standard deviations and their parts, in units of the target."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from sklearn.exceptions import DataConversionWarning

import ltnode
from ltnode.estimators import RegressionUncertainty

NOISE = 0.3


def sine(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, 100 + 10 * (np.sin(X[:, 0]) + NOISE * rng.normal(size=n))


@pytest.fixture(scope="module")
def fitted():
    return ltnode.LTNodeRegressor(max_epochs=40, random_state=0).fit(*sine(250, 0))


def test_it_learns_a_curve_and_its_noise(fitted):
    """y = 100 + 10 sin x + noise of 3: the RMSE to the curve is below half the noise, and the noise is found within 40 %.

    250 points estimate a standard deviation to 5 %, the held-out part of 38 to 12 %.
    """
    X = np.linspace(-2.8, 2.8, 100)[:, None]
    mean, std = fitted.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - 100 - 10 * np.sin(X[:, 0])) ** 2)) < 1.5
    assert 2 < fitted.noise_std_ < 4.2
    np.testing.assert_array_equal(mean, fitted.predict(X))
    assert std.shape == (100,)


def test_intervals_cover_what_they_promise(fitted):
    """90 % intervals on 2,000 new points. 38 held-out rows determine the noise to 12 %; 24 % gives a coverage of 79 or 96 %."""
    X, y = sine(2000, 1)
    mean, std = fitted.predict(X, return_std=True)
    assert 0.79 < np.mean(np.abs(y - mean) < 1.645 * std) < 0.97


def test_the_parts_of_the_uncertainty_add_up(fitted):
    """The definitions hold to 1e-9 in float64."""
    X = np.linspace(-6, 6, 50)[:, None]
    u = fitted.predict_uncertainty(X)
    assert isinstance(u, RegressionUncertainty) and len(u) == 50
    np.testing.assert_allclose(u.aleatoric + u.epistemic, u.std**2, rtol=1e-9)
    np.testing.assert_allclose(u.std, fitted.predict(X, return_std=True)[1], rtol=1e-12)
    np.testing.assert_allclose(u.epistemic, u.model_std**2, rtol=1e-12)
    np.testing.assert_allclose(u.noise_std, fitted.noise_std_, rtol=1e-12)
    np.testing.assert_allclose(u.entropy, 0.5 * np.log(2 * math.pi * math.e * u.std**2), rtol=1e-9)
    np.testing.assert_allclose(fitted.score_samples(X), -u.distance, rtol=1e-12)


def test_rows_far_from_the_data_get_lower_scores(fitted):
    """x = 9 and -9, three times the range of the data, compared with the inside."""
    inside = fitted.score_samples(np.linspace(-2, 2, 20)[:, None])
    outside = fitted.score_samples([[-9.0], [9.0]])
    assert outside.max() < inside.min()


def test_units_of_the_target_do_not_matter():
    """y -> a y + b maps means likewise and standard deviations by |a|, up to rounding: training sees the same values."""
    X, y = sine(80, 2)
    model = ltnode.LTNodeRegressor(max_epochs=3, random_state=0)
    mean, std = model.fit(X, y).predict(X, return_std=True)
    other_mean, other_std = model.fit(X, 1e6 * y - 5e3).predict(X, return_std=True)
    np.testing.assert_allclose(other_mean, 1e6 * mean - 5e3, rtol=1e-6)
    np.testing.assert_allclose(other_std, 1e6 * std, rtol=1e-6)


def test_constant_targets_and_features_are_no_division_by_zero():
    """A constant target is predicted, and no value is NaN."""
    X = np.ones((60, 2))
    mean, std = ltnode.LTNodeRegressor(max_epochs=20, random_state=0).fit(X, np.full(60, 7.0)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 7, atol=0.5)
    assert np.isfinite(std).all() and (std > 0).all()


def test_a_fixed_end_time_has_noise_only():
    """With one member there is no spread, so that the standard deviation of a row in the middle of the data is the noise."""
    X, y = sine(60, 3)
    model = ltnode.LTNodeRegressor("fixed", members=1, max_epochs=3, random_state=0).fit(X, y)
    u = model.predict_uncertainty(np.median(X, axis=0, keepdims=True))
    assert u.model_std.max() < 1e-9
    np.testing.assert_allclose(u.std, u.noise_std, rtol=1e-9)


def test_partial_fit_and_warm_start_go_on():
    """The loss decreases from call to call, and a pickle keeps the whole state."""
    X, y = sine(100, 4)
    model = ltnode.LTNodeRegressor(random_state=0)
    for _ in range(6):
        model.partial_fit(X, y)
    assert model.n_iter_ == 6 and model.loss_curve_[-1] < model.loss_curve_[0]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    warm = ltnode.LTNodeRegressor(max_epochs=3, warm_start=True, random_state=0).fit(X, y)
    first = warm.loss_curve_[0]
    assert warm.fit(X, y).loss_curve_[0] < first


def test_a_column_of_targets_is_taken_with_a_warning():
    """A column vector is accepted with scikit-learn's warning, and is one target."""
    X, y = sine(30, 5)
    with pytest.warns(DataConversionWarning):
        prediction = ltnode.LTNodeRegressor(max_epochs=2, random_state=0).fit(X, y[:, None]).predict(X)
    np.testing.assert_array_equal(prediction, ltnode.LTNodeRegressor(max_epochs=2, random_state=0).fit(X, y).predict(X))
