"""`LTNodeClassifier`: what it learns, its uncertainty, and that only its arguments determine the result."""

from __future__ import annotations

import io
import math
import pickle
import random

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons

import ltnode
from ltnode.estimators import Uncertainty
from ltnode.estimators.base import END_TIMES


@pytest.fixture(scope="module")
def moons():
    return make_moons(160, noise=0.25, random_state=0)


@pytest.fixture(scope="module")
def fitted(moons):
    return ltnode.LTNodeClassifier(max_epochs=60, batch_size=32, learning_rate=0.01, random_state=0).fit(*moons)


def test_it_learns_a_curved_border(fitted):
    """Two moons with noise 0.25: a straight border misclassifies 14 % of new points, the best curve 6 %."""
    assert fitted.score(*make_moons(1000, noise=0.25, random_state=1)) > 0.89


@pytest.mark.parametrize("end_time", END_TIMES)
def test_every_end_time_fits_and_predicts(end_time):
    """Blobs that are 5 standard deviations apart: every end-time classifies all but a few points correctly."""
    X, y = make_blobs(90, centers=[[0, 0], [5, 0], [0, 5]], random_state=0)
    model = ltnode.LTNodeClassifier(end_time, members=1, max_epochs=8, random_state=0).fit(X, y)
    assert model.model_.spec["model"] == END_TIMES[end_time]
    assert model.score(X, y) > 0.9
    epistemic = model.predict_uncertainty(X).epistemic
    # One network with a fixed end-time has only one member, which agrees with itself; others disagree somewhere.
    assert (epistemic.max() < 1e-12) == (end_time == "fixed")


def test_probabilities_labels_and_logarithms_agree(fitted, moons):
    """Everything is float64: sums and logarithms agree to 1e-12."""
    X = moons[0]
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probabilities, rtol=1e-10)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[probabilities.argmax(1)])


def test_the_entropy_splits_in_two_and_is_that_of_the_probabilities(fitted, moons):
    """Reference: the definition of the entropy; the split is exact up to the rounding of a clamp at 0."""
    X = moons[0]
    u = fitted.predict_uncertainty(X)
    assert (
        isinstance(u, Uncertainty)
        and len(u) == len(X)
        and list(u.as_dict())
        == [
            "entropy",
            "aleatoric",
            "epistemic",
            "distance",
            "familiarity",
        ]
    )
    p = fitted.predict_proba(X)
    np.testing.assert_allclose(u.entropy, -(p * np.log(p)).sum(1), rtol=1e-9)
    np.testing.assert_allclose(u.aleatoric + u.epistemic, u.entropy, rtol=1e-9, atol=1e-12)
    assert u.entropy.max() <= math.log(2) + 1e-12 and u.epistemic.min() >= 0
    np.testing.assert_array_equal(fitted.score_samples(X), -u.distance)


def test_the_members_are_those_of_the_model_inside(fitted, moons):
    """`model_` on standardised inputs gives the probabilities of the estimator up to rounding."""
    x = torch.tensor(fitted.scaler_.transform(moons[0]))
    np.testing.assert_allclose(fitted.model_.predict(x).probs.numpy(), fitted.predict_proba(moons[0]), rtol=1e-12)


def test_doubt_is_larger_between_the_classes_than_inside_of_one(fitted):
    """(0.5, 0.25) lies between the two moons, (0, 1) on the upper one."""
    entropy = fitted.predict_uncertainty([[0.5, 0.25], [0.0, 1.0]]).entropy
    assert entropy[0] > entropy[1] + 0.1


@pytest.mark.parametrize("names", [["no", "yes"], [False, True], [-7, 12], ["hiver", "été"]], ids=str)
def test_labels_of_any_type_come_back(moons, names):
    """The same training with renamed classes gives the renamed predictions, bit for bit."""
    X, y = moons
    model = ltnode.LTNodeClassifier(max_epochs=2, random_state=0)
    plain = clone(model).fit(X, y).predict(X)
    renamed = model.fit(X, np.array(names)[y])
    assert list(renamed.classes_) == sorted(names)
    np.testing.assert_array_equal(renamed.predict(X), np.array(names)[plain])


@pytest.mark.no_typecheck  # beartype itself draws from Python's generator
def test_random_state_alone_decides_and_the_global_generators_are_left_alone(moons):
    """Two fits under different global states agree bit for bit; the states of random, numpy and torch are untouched."""
    results = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  (scikit-learn's users seed it)
        torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
        results.append(ltnode.LTNodeClassifier(max_epochs=2, random_state=3).fit(*moons).predict_proba(moons[0]))
        assert random.getstate() == before[0]
        np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before[2])
    np.testing.assert_array_equal(*results)
    other = ltnode.LTNodeClassifier(max_epochs=2, random_state=4).fit(*moons).predict_proba(moons[0])
    assert np.abs(other - results[0]).max() > 1e-3


@pytest.mark.parametrize("copy", ["pickle", "joblib"])
def test_a_saved_estimator_predicts_the_same(fitted, moons, copy):
    """No graph, gradient or generator is pickled: predictions are identical, and the file is small (155 kB of weights)."""
    buffer = io.BytesIO()
    if copy == "pickle":
        pickle.dump(fitted, buffer)
    else:
        joblib.dump(fitted, buffer)
    assert buffer.tell() < 1_200_000
    buffer.seek(0)
    again = pickle.load(buffer) if copy == "pickle" else joblib.load(buffer)
    np.testing.assert_array_equal(again.predict_proba(moons[0]), fitted.predict_proba(moons[0]))


def test_a_clone_is_unfitted_and_trains_to_the_same(fitted, moons):
    """Only parameters are cloned."""
    again = clone(fitted)
    assert not hasattr(again, "model_")
    np.testing.assert_array_equal(again.fit(*moons).predict_proba(moons[0]), fitted.predict_proba(moons[0]))


def test_large_inputs_are_predicted_in_parts(fitted, moons, monkeypatch):
    """Predicting in chunks of 7 rows gives the same probabilities up to rounding (float64)."""
    whole = fitted.predict_proba(moons[0])
    monkeypatch.setattr("ltnode.estimators.base._CHUNK", 7)
    np.testing.assert_allclose(fitted.predict_proba(moons[0]), whole, rtol=1e-9)


def test_partial_fit_learns_from_chunks(moons):
    """Twelve passes in two chunks are better than a linear border, and every pass is counted."""
    X, y = moons
    model = ltnode.LTNodeClassifier(random_state=0, learning_rate=0.02)
    for _ in range(6):
        for rows in (slice(0, 80), slice(80, None)):
            model.partial_fit(X[rows], y[rows], classes=[0, 1])
    assert model.n_iter_ == len(model.loss_curve_) == 12
    assert np.mean(model.loss_curve_[-4:]) < 0.75 * np.mean(model.loss_curve_[:4])
    assert model.score(X, y) > 0.83


def test_partial_fit_keeps_the_optimisers_memory_through_a_pickle(moons):
    """Stopped, saved and continued training equals uninterrupted training, bit for bit."""
    X, y = moons
    straight = ltnode.LTNodeClassifier(random_state=0).partial_fit(X, y, classes=[0, 1]).partial_fit(X, y)
    stopped = pickle.loads(pickle.dumps(ltnode.LTNodeClassifier(random_state=0).partial_fit(X, y, classes=[0, 1])))
    np.testing.assert_array_equal(stopped.partial_fit(X, y).predict_proba(X), straight.predict_proba(X))


def test_partial_fit_wants_to_know_all_classes(moons):
    """The first call needs the classes; later calls must agree with them, and no label may be new."""
    X, y = moons
    with pytest.raises(ltnode.InputError, match="needs classes"):
        ltnode.LTNodeClassifier().partial_fit(X, y)
    model = ltnode.LTNodeClassifier(random_state=0).partial_fit(X[:20], y[:20], classes=[0, 1])
    with pytest.raises(ltnode.InputError, match="those of the first call"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ltnode.InputError, match=r"labels \[.*5.*\], which are not among"):
        model.partial_fit(X, np.where(y == 1, 5, 0))


def test_warm_start_goes_on_and_a_cold_one_begins_anew(moons):
    """The first epoch of a second, warm fit has a smaller loss than that of the first fit; a cold fit repeats it exactly."""
    for warm in (True, False):
        model = ltnode.LTNodeClassifier(max_epochs=4, warm_start=warm, early_stopping=False, random_state=0)
        first = model.fit(*moons).loss_curve_[0]
        second = model.fit(*moons).loss_curve_[0]
        assert second < 0.97 * first if warm else second == first


def test_a_held_out_part_is_stratified_and_may_be_refused(moons):
    """120 rows of two classes and 1 of a third cannot be stratified, and training still works; False holds out nothing."""
    X, y = moons
    y = y.copy()
    y[0] = 2
    assert len(ltnode.LTNodeClassifier(max_epochs=2).fit(X, y).validation_scores_) == 2
    assert ltnode.LTNodeClassifier(max_epochs=2, early_stopping=False).fit(X, y).validation_scores_ is None
    assert ltnode.LTNodeClassifier(max_epochs=2).fit(X[1:40], y[1:40]).validation_scores_ is None  # below 50 rows


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"end_time": "gama"}, "Did you mean 'gamma'"),
        ({"width": 0}, "width must be an integer of at least 1"),
        ({"batch_size": "all"}, "batch_size must be an integer"),
        ({"max_epochs": 2.5}, "max_epochs must be an integer"),
        ({"early_stopping": "yes"}, "early_stopping must be True, False or 'auto'"),
        ({"validation_fraction": 1.5}, "validation_fraction must be between 0 and 1"),
        ({"calibration_fraction": 1.0}, "calibration_fraction must be at least 0 and below 1"),
        ({"tol": -1}, "tol must be a number >= 0"),
        ({"kl_weight": -1.0}, "kl_weight must be a number"),
        ({"learning_rate": -1.0}, "lr must be a finite number >= 0, not -1.0"),
        ({"device": "tpu"}, "device must be .*, not 'tpu'"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "holds out 0"),
    ],
    ids=str,
)
def test_an_invalid_parameter_gets_an_error_that_says_what_is_allowed(moons, parameters, message):
    """All are ValueErrors, as in scikit-learn, and raised by fit, not by the constructor."""
    model = ltnode.LTNodeClassifier(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(*moons)


def test_progress_is_logged_on_request(moons, caplog):
    """One log line every two epochs with verbose=2, none with 0."""
    with caplog.at_level("INFO", "ltnode"):
        ltnode.LTNodeClassifier(max_epochs=4, verbose=0, random_state=0).fit(*moons)
        assert not caplog.messages
        ltnode.LTNodeClassifier(max_epochs=4, verbose=2, random_state=0).fit(*moons)
    assert [message.split(",")[0] for message in caplog.messages] == [f"LTNodeClassifier: epoch {n}" for n in (2, 4)]
    assert "held-out log-likelihood" in caplog.text
