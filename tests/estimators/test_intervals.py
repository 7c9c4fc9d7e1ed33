"""`LTNodeRegressor.predict_interval`: conformal coverage from rows that chose nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.conformal import conformal_factor, conformal_scores


@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (19, 0.05), (37, 0.2)])
def test_the_coverage_is_exact_however_wrong_the_model_is(n, alpha, rng):
    """Mean and standard deviation are wrong on purpose, and the noise is skewed. The coverage is k / (n + 1) exactly.

    One new row for each of 20,000 calibration sets: the standard error is below 0.003, and 4 of them are allowed.
    """
    trials = 20_000
    x, noise = rng.normal(size=(n + 1, trials)), rng.exponential(size=(n + 1, trials))
    y, mean, std = 3 * x + noise * np.abs(x), 2.5 * x + 1, 0.1 + x**2
    factor = conformal_factor(conformal_scores(y[:n], mean[:n], std[:n]), alpha)
    covered = np.mean(np.abs(y[n] - mean[n]) <= factor * std[n])
    expected = np.ceil((n + 1) * (1 - alpha) - 1e-9) / (n + 1)
    assert expected >= 1 - alpha - 1e-12
    assert abs(covered - expected) < 4 * np.sqrt(expected * (1 - expected) / trials)


def table(seed, n):
    """Noise that grows with x, which a model with constant noise gets wrong."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, np.sin(3 * X[:, 0]) + (0.1 + np.abs(X[:, 1])) * rng.standard_t(4, size=n)


def coverages(fits):
    """Coverage of 80 % intervals of 1,000 new rows for each fit on another table."""
    shares = []
    for seed in range(fits):
        reg = ltnode.LTNodeRegressor(noise="constant", max_epochs=1, random_state=seed).fit(*table(seed, 110))
        X, y = table(10_000 + seed, 1000)
        low, high = reg.predict_interval(X, alpha=0.2)
        assert len(reg.interval_scores_) == len(reg.calibration_rows_) == 19
        shares.append(np.mean((low <= y) & (y <= high)))
    return np.array(shares)


def check_coverage(fits):
    """Over tables, the coverage of infinitely many new rows is Beta(k, n + 1 - k) distributed with k = 16 of n + 1 = 20.

    Its mean is 0.8; 1,000 rows add little to its spread. The mean over the fits must be within 3.5 of its standard errors.
    """
    exact = stats.betabinom(1000, 16, 4)
    assert abs(coverages(fits).mean() - exact.mean() / 1000) < 3.5 * exact.std() / 1000 / np.sqrt(fits)


def test_whole_fits_cover_what_they_promise():
    """A small simulation: 6 fits, a standard error of 0.036."""
    check_coverage(6)


@pytest.mark.slow
def test_many_fits_cover_what_they_promise():
    """60 fits, a standard error of 0.011."""
    check_coverage(60)


@pytest.mark.no_typecheck
def test_the_interval_is_that_of_sorted_errors_and_too_small_an_alpha_is_refused():
    """Reference: the errors of the calibration rows in standard deviations, sorted here; equal to rounding."""
    X, y = table(0, 110)
    reg = ltnode.LTNodeRegressor(noise="constant", max_epochs=1, random_state=0).fit(X, y)
    rows = reg.calibration_rows_
    mean, std = reg.predict(X[rows], return_std=True)
    scores = np.sort(np.abs(y[rows] - mean) / std)
    mean, std = reg.predict(X, return_std=True)
    for alpha, place in ((0.05, 19), (0.1, 18), (0.5, 10)):
        low, high = reg.predict_interval(X, alpha)
        np.testing.assert_allclose(high, mean + scores[place - 1] * std, rtol=1e-9)
        np.testing.assert_allclose(low + high, 2 * mean, rtol=1e-9)
    with pytest.raises(InputError, match=r"at least 1 / \(n \+ 1\) = 0.05 with n = 19 calibration rows, not 0.01"):
        reg.predict_interval(X, 0.01)
    for wrong in (0, 1, -0.1, "0.1", True):
        with pytest.raises(InputError, match="alpha must be a number between 0 and 1"):
            reg.predict_interval(X, wrong)
    with pytest.raises(InputError, match="needs calibration rows, which fit holds out of 100 rows or more"):
        reg.partial_fit(X, y).predict_interval(X)
