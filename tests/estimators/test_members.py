"""Estimators of several networks that are trained together, and how long they are trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.budget import automatic_batch, automatic_epochs, averaging
from ltnode.estimators.networks import balanced_samples, copy_to_varying_, networks_of
from ltnode.models import Ensemble, InputSpec, build

QUICK = {"max_epochs": 3, "width": 8, "random_state": 0}


@pytest.fixture(scope="module")
def moons():
    return make_moons(120, noise=0.25, random_state=0)


@pytest.fixture(scope="module")
def three(moons):
    return ltnode.LTNodeClassifier(members=3, samples=4, **QUICK).fit(*moons)


def test_a_prediction_averages_over_all_networks_alike(three, moons):
    """Four end-times become six, two of each of three networks; the reference are the networks alone. Softmax in float64."""
    model = three.model_
    assert isinstance(model, Ensemble) and len(model.networks) == 3 and balanced_samples(model, 4) == 6
    x = torch.tensor(three.scaler_.transform(moons[0][:20]))
    model.widening = type(model.widening)().double()  # that of the ensemble, which its networks do not have
    alone = torch.stack([network.predict(x, samples=2).probs for network in networks_of(model)]).mean(dim=0)
    torch.testing.assert_close(model.predict(x, samples=6).probs, alone, rtol=1e-4, atol=1e-4)


def test_networks_begin_and_end_as_different_functions(three, moons):
    """They start from different weights, so that they disagree on new rows; the estimator reports it as epistemic."""
    x = torch.tensor(three.scaler_.transform(moons[0]))
    outputs = torch.stack([network.predict(x, samples=1).probs for network in networks_of(three.model_)])
    assert outputs.std(dim=0).max() > 0.01
    assert three.predict_uncertainty(moons[0]).epistemic.max() > 1e-4


def test_the_prediction_of_a_row_does_not_depend_on_the_others(three, moons):
    """In parts of 1 and 50 rows as in one; float64, in which products of other sizes round differently."""
    X = moons[0]
    together = three.predict_proba(X)
    parts = np.concatenate([three.predict_proba(X[:1]), three.predict_proba(X[1:51]), three.predict_proba(X[51:])])
    np.testing.assert_allclose(parts, together, rtol=1e-9, atol=1e-12)


def test_one_network_is_no_ensemble_and_none_is_an_error(moons):
    assert isinstance(ltnode.LTNodeClassifier(members=1, **QUICK).fit(*moons).model_, ltnode.LatentTimeODE)
    with pytest.raises(InputError, match="members must be an integer of at least 1, not 0"):
        ltnode.LTNodeClassifier(members=0).fit(*moons)


def test_a_training_goes_on_with_varying_noise_from_the_same_predictions():
    """The copy has weights of zero for the noise, so that it predicts the same mean and noise, to rounding (float64)."""
    spec = InputSpec((3,), "regression", None, 2)
    constant, varying = (
        build("ensemble", spec, seed=seed, of="lt-node", members=2, width=6, noise=noise).double()
        for seed, noise in ((0, "constant"), (1, "varying"))
    )
    copy_to_varying_(varying, constant)
    x = torch.randn(7, 3, dtype=torch.float64)
    one, other = (model.predict(x, samples=4) for model in (constant, varying))
    torch.testing.assert_close(other.outputs, one.outputs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other.noise_std, one.noise_std.expand(7, 2), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("rows", "batch", "epochs"), [(40, 16, 400), (400, 50, 375), (10_000, 256, 75), (100_000, 256, 30)])
def test_the_length_of_a_training_follows_from_the_rows(rows, batch, epochs):
    """An eighth of the rows within 16..256, and 3,000 steps within 30..400 passes."""
    assert automatic_batch(rows) == batch
    assert automatic_epochs(rows, batch) == epochs


def test_weights_are_averaged_over_a_twentieth_of_the_steps():
    """The weights of an average with decay d have the mean age 1 / (1 - d)."""
    decay = averaging(3000)
    assert decay is not None and 1 / (1 - decay) == pytest.approx(150)
    assert averaging(20) is None


def test_the_penalty_of_a_classifier_falls_with_the_rows_and_a_regressor_has_none():
    """0.5 divided by the rows that are trained on; a number is taken as it is."""
    assert ltnode.LTNodeClassifier()._config(200, 0).weight_decay == pytest.approx(0.0025)
    assert ltnode.LTNodeRegressor()._config(200, 0).weight_decay == 0
    assert ltnode.LTNodeClassifier(weight_decay=0.1)._config(200, 0).weight_decay == 0.1
