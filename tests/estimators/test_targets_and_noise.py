"""`LTNodeRegressor` with several targets, and with noise that varies with the row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.held_out import clearly_better


def targets(n, seed):
    """Three targets with different units, functions and noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    clean = np.stack([np.sin(X[:, 0]), 1000 + 50 * X[:, 1], 1e-3 * (X[:, 0] - X[:, 1])], axis=1)
    return X, clean + rng.normal(size=(n, 3)) * [0.05, 5.0, 3e-4]


@pytest.fixture(scope="module")
def several():
    return ltnode.LTNodeRegressor(noise="constant", max_epochs=15, width=16, random_state=0).fit(*targets(300, 0))


def test_several_targets_are_learnt_in_their_own_units(several):
    """Each explains most of the variance, and its noise is within a factor of 2.5 after a short training."""
    X, y = targets(500, 1)
    mean, std = several.predict(X, return_std=True)
    assert mean.shape == std.shape == (500, 3)
    assert (1 - ((y - mean) ** 2).mean(axis=0) / y.var(axis=0) > 0.7).all()
    assert several.noise_std_.shape == (3,)
    assert (np.abs(np.log(std.mean(axis=0) / np.sqrt(((y - mean) ** 2).mean(axis=0)))) < np.log(2.5)).all()


def test_uncertainty_and_intervals_have_one_value_per_target(several):
    """Definitions to rounding; the coverage of each target is that of 19 scores, between its 0.05 and 99.95 % quantiles."""
    X, y = targets(2000, 2)
    u = several.predict_uncertainty(X)
    np.testing.assert_allclose(u.aleatoric + u.epistemic, u.std**2, rtol=1e-9)
    np.testing.assert_allclose(u.entropy, stats.norm(scale=u.std).entropy().sum(axis=1), rtol=1e-9)
    assert u.distance.shape == u.familiarity.shape == (2000,)
    low, high = several.predict_interval(X, alpha=0.1)
    covered = ((low <= y) & (y <= high)).mean(axis=0)
    assert covered.shape == (3,)
    assert (covered > stats.beta(18, 2).ppf(0.0005)).all() and (covered <= 1).all()
    assert several.score(X, y) > 0.7


def test_the_number_of_targets_cannot_change_while_training_goes_on(several):
    with pytest.raises(InputError, match="y must have 3 targets as before, not 1"):
        several.partial_fit(*(part if part.ndim == 1 or part.shape[1] == 2 else part[:, 0] for part in targets(20, 3)))


def fan(n, seed):
    """Noise of 0.05 on the left, and of 1 on the right."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 1))
    return X, X[:, 0] + np.where(X[:, 0] < 0, 0.05, 1.0) * rng.normal(size=n)


def test_the_noise_is_chosen_on_held_out_rows():
    """A fan asks for varying noise: the ratio of standard deviations is 20, of which 4 must be found. The log-likelihood of new
    rows is better than with constant noise by far more than its standard error of about 0.03.
    """
    X, y = fan(300, 0)
    settings = {"max_epochs": 20, "width": 8, "learning_rate": 0.02, "random_state": 0}
    reg = ltnode.LTNodeRegressor(**settings).fit(X, y)
    assert reg.noise_ == "varying"
    noise = reg.predict_uncertainty([[-0.6], [0.6]]).noise_std
    assert noise[1] > 4 * noise[0]
    new_X, new_y = fan(2000, 1)
    likelihoods = []
    for model in (reg, ltnode.LTNodeRegressor(noise="constant", **settings).fit(X, y)):
        mean, std = model.predict(new_X, return_std=True)
        likelihoods.append(stats.norm(mean, std).logpdf(new_y).mean())
    assert likelihoods[0] > likelihoods[1] + 0.2


def test_without_rows_to_choose_on_the_noise_is_constant():
    X, y = fan(40, 0)
    for options, expected in (({}, "constant"), ({"noise": "varying"}, "varying")):
        assert ltnode.LTNodeRegressor(max_epochs=1, width=4, random_state=0, **options).fit(X, y).noise_ == expected
    with pytest.raises(InputError, match="noise 'varyin' is unknown|unknown noise|'varying'"):
        ltnode.LTNodeRegressor(noise="varyin").fit(X, y)


def test_chance_seldom_decides_for_the_second_candidate(rng):
    """Equal models win with a probability of 16 % (one standard error), within 4 standard errors of 1,000 draws."""
    wins = np.mean([clearly_better(*torch.from_numpy(rng.normal(size=(2, 60)))) for _ in range(1000)])
    assert abs(wins - stats.norm.sf(1)) < 4 * np.sqrt(0.16 * 0.84 / 1000)
    values = torch.from_numpy(rng.normal(size=(60, 2)))
    assert clearly_better(values + 0.1, values) and not clearly_better(values, values)
