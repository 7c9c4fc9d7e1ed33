"""Training again on the rows that have chosen (``refit``)."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import ltnode
from ltnode.data import Split
from ltnode.errors import InputError
from ltnode.estimators import base, candidates
from ltnode.estimators.epochs import Patience, TableTraining
from ltnode.estimators.held_out import judge
from ltnode.training.status import RunStatus, TrainingError

SHORT = {"max_epochs": 6, "members": 2, "random_state": 0}


@pytest.fixture
def table(rng):
    X = rng.normal(size=(160, 3))
    return X, X[:, 0] + 0.3 * rng.normal(size=160)


def training(rng, task: str, epochs: int = 12) -> tuple[TableTraining, Split]:
    """A training of two networks, and held-out rows."""
    x = torch.tensor(rng.normal(size=(120, 3)))
    y = (x[:, 0] > 0).long() if task == "classification" else torch.sin(2 * x[:, 0]) + 0.3 * torch.tensor(rng.normal(size=120))
    spec = ltnode.InputSpec((3,), task, 2 if task == "classification" else None)
    model = ltnode.build("ensemble", spec, seed=0, of="lt-node", members=2).double()
    config = ltnode.TrainConfig(
        epochs=epochs, batch_size=16, lr=0.02, schedule="cosine", averaging=0.9, weight_decay=0.001, device="cpu"
    )
    return TableTraining(model, Split(x[:80], y[:80]), config), Split(x[80:], y[80:])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_repeating_a_training_on_the_same_rows_gives_the_same_model(rng, task):
    """The reference of `TableTraining.repeat` is the training that held-out rows have chosen: equal bits."""
    state = copy.deepcopy(rng)
    first, held_out = training(rng, task)
    course = first.run(Patience(100, 0.0), held_out)
    assert course.choice is not None
    again, _ = training(state, task)
    again.repeat(course.choice.epochs, course.choice.trained, course.choice.softening)
    assert again.epoch == course.choice.epochs
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["labels", "targets"])
def test_the_second_training_has_all_rows_but_those_that_calibrate(table, monkeypatch, kind):
    """160 rows: 19 calibrate, 21 choose, 120 are trained on first, and 141 the second time."""
    X, y = table
    seen = []
    original = candidates.repeated

    def spied(recipe, chosen, part, held_out):
        seen.append(part.split.x.numpy().copy())
        return original(recipe, chosen, part, held_out)

    monkeypatch.setattr(base, "repeated", spied)
    model = ltnode.LTNodeRegressor(**SHORT) if kind == "targets" else ltnode.LTNodeClassifier(**SHORT)
    model.fit(X, y if kind == "targets" else (y > 0).astype(int))
    (rows,) = seen
    assert len(rows) == 141 and len(model.validation_rows_) == 21
    kept = np.setdiff1d(np.arange(160), model.calibration_rows_)
    np.testing.assert_allclose(rows, model.scaler_.transform(X[kept]), rtol=1e-12)


def test_calibration_rows_change_nothing_but_the_intervals(table):
    """Other targets of the calibration rows: the same bits of means and standard deviations, and wider intervals."""
    X, y = table
    model = ltnode.LTNodeRegressor(refit=True, **SHORT).fit(X, y)
    changed = y.copy()
    changed[model.calibration_rows_] += 100
    other = ltnode.LTNodeRegressor(refit=True, **SHORT).fit(X, changed)
    for one, two in zip(model.predict(X, return_std=True), other.predict(X, return_std=True), strict=True):
        assert (one == two).all()
    assert other.interval_scores_.min() > model.interval_scores_.max()


def test_the_rows_that_chose_are_learnt(table):
    """A second training lowers the error on the rows that were held out from the first; both fits are deterministic."""
    X, y = table
    first, again, twice = (
        ltnode.LTNodeRegressor(**{**SHORT, "max_epochs": 60}, refit=refit).fit(X, y) for refit in (False, True, True)
    )
    rows = first.validation_rows_
    errors = [np.mean((model.predict(X[rows]) - y[rows]) ** 2) for model in (first, again)]
    assert errors[1] < errors[0]
    assert (again.predict(X) == twice.predict(X)).all()
    assert first.validation_scores_ == again.validation_scores_


def untrained(*words):
    """A training that does nothing."""


def broken(*words):
    raise TrainingError(RunStatus.NON_FINITE, "the loss of step 0 is nan")


@pytest.mark.parametrize("repeat", [untrained, broken])
def test_a_failed_second_training_is_discarded(table, monkeypatch, repeat):
    """The bits are those of a fit without it."""
    X, y = table
    expected = ltnode.LTNodeRegressor(refit=False, **SHORT).fit(X, y)
    monkeypatch.setattr(TableTraining, "repeat", repeat)
    model = ltnode.LTNodeRegressor(refit=True, **SHORT).fit(X, y)
    assert (model.predict(X) == expected.predict(X)).all()


def test_a_second_training_goes_on_until_it_is_as_good(rng):
    """A level that an early epoch does not reach is reached later, and one that no epoch reaches is not."""
    first, held_out = training(rng, "regression", epochs=30)
    goal = first.run(Patience(100, 0.0), held_out).choice.trained
    for level, reached in ((goal - 0.1, True), (goal + 5, False)):
        again, _ = training(np.random.default_rng(1), "regression", epochs=30)
        again.repeat(1, level, torch.ones(()).double())
        x, y = again.data.train.x, again.data.train.y
        assert (judge(again.model.predict(x), y).log_likelihood >= level) == reached
        assert 1 < again.epoch < 30 if reached else again.epoch == 30


def test_the_level_is_that_of_all_rows(rng):
    """80 rows that were trained on and 40 that were held out: the mean of their log-likelihoods, weighted by their numbers."""
    one, held_out = training(rng, "regression")
    choice = one.run(Patience(100, 0.0), held_out).choice
    stage = candidates.Stage.of("constant", 1.0, one, choice, len(held_out))
    assert stage.level == pytest.approx((80 * choice.trained + 40 * choice.log_likelihood) / 120, rel=1e-12)
    assert stage.progress == choice.epochs / 12


@pytest.mark.no_typecheck
def test_nothing_is_repeated_if_nothing_finite_was_chosen():
    chosen = candidates.Candidate(None, None, (candidates.Stage("constant", 1.0),))
    assert candidates.repeated(None, chosen, None, None) is None


def test_automatic_is_for_small_tables_without_warm_start(table, monkeypatch):
    X, y = table

    def refitted(**options):
        return ltnode.LTNodeRegressor(**SHORT, **options).fit(X, y)._refitted

    assert refitted() and refitted(refit=True)
    assert not refitted(refit=False) and not refitted(warm_start=True) and not refitted(early_stopping=False)
    monkeypatch.setattr(base, "_REFIT_BELOW", 160)
    assert not refitted() and refitted(refit=True)


def test_a_later_fit_should_not_choose_on_rows_that_were_trained_on(table, tmp_path, caplog):
    """Going on from such a model is possible, since the rows may be others, but says so; also after loading."""
    X, y = table
    with pytest.raises(InputError, match="refit=True needs warm_start=False"):
        ltnode.LTNodeRegressor(refit=True, warm_start=True).fit(X, y)
    with pytest.raises(InputError, match="refit must be True, False or 'auto', not 'no'"):
        ltnode.LTNodeRegressor(refit="no").fit(X, y)
    model = ltnode.LTNodeRegressor(**SHORT).fit(X, y)
    for one in (model, ltnode.load(ltnode.save(model, tmp_path / "saved"))):
        caplog.clear()
        one.set_params(warm_start=True).fit(X, y)
        assert "goes on from a model that was trained on the rows that chose" in caplog.text
        caplog.clear()
        one.fit(X, y)  # the last fit had no second training
        assert caplog.text == ""
