"""``sample_weight``: what the weights of rows mean in the loss, where held-out rows choose, and in whole fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ltnode
from ltnode.errors import InputError
from ltnode.estimators.held_out import judge
from ltnode.models import InputSpec, Prediction

QUICK = {"max_epochs": 2, "width": 4, "random_state": 0}


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_weight_is_a_number_of_copies_in_the_loss(name, task, generator):
    """The gradient with weights equals that of a batch with repeated rows, to rounding in float64 (1e-10)."""
    spec = InputSpec((2,), task, 3 if task == "classification" else None)
    model = ltnode.build(name, spec, seed=0, width=4).double()
    counts = torch.tensor([1, 3, 0, 2])
    x = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1]) if task == "classification" else x[:, 0]
    times = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    model.loss(x, y, n_data=6, times=times)  # chooses the steps of the training grid
    repeated = model.loss(x.repeat_interleave(counts, dim=0), y.repeat_interleave(counts), n_data=6, times=times)
    expected = torch.autograd.grad(repeated, list(model.parameters()), allow_unused=True)
    weighted = model.weighted_loss(x, y, counts.double() * 4 / 6, n_data=6, times=times)
    found = torch.autograd.grad(weighted, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(weighted, repeated, rtol=1e-10, atol=1e-10)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_weight_is_a_number_of_copies_where_held_out_rows_choose(generator):
    """Log-likelihood and softening equal those of repeated rows, to rounding."""
    counts = torch.tensor([2, 1, 4])
    means = torch.randn(5, 3, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(3, generator=generator, dtype=torch.float64)
    noise = torch.tensor(0.3, dtype=torch.float64)
    weighted = judge(Prediction("regression", means, torch.ones(5), noise=noise), y, counts.double())
    copies = Prediction("regression", means.repeat_interleave(counts, dim=1), torch.ones(5), noise=noise)
    repeated = judge(copies, y.repeat_interleave(counts))
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, rel=1e-12)
    assert torch.equal(weighted.softening, repeated.softening)


def table(n=120):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=n)


def test_only_ratios_matter_and_rows_of_weight_zero_have_no_influence():
    """Equal weights and powers of two change no bit; a fit without the rows of weight 0 is the same fit, bit for bit."""
    X, y = table()
    quick = {**QUICK, "noise": "constant"}
    plain = ltnode.LTNodeRegressor(**quick).fit(X, y).predict(X)
    np.testing.assert_array_equal(ltnode.LTNodeRegressor(**quick).fit(X, y, sample_weight=np.full(120, 0.3)).predict(X), plain)
    weights = np.random.default_rng(1).integers(0, 4, size=120).astype(float)
    reg = ltnode.LTNodeRegressor(**quick).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(ltnode.LTNodeRegressor(**quick).fit(X, y, sample_weight=8 * weights).predict(X), reg.predict(X))
    kept = np.flatnonzero(weights)
    without = ltnode.LTNodeRegressor(**quick).fit(X[kept], y[kept], sample_weight=weights[kept])
    np.testing.assert_array_equal(without.predict(X), reg.predict(X))
    np.testing.assert_array_equal(kept[without.validation_rows_], reg.validation_rows_)
    assert np.abs(reg.predict(X) - plain).max() > 1e-3


def test_heavy_rows_win_where_labels_contradict_each_other():
    """The same rows with both labels, one of which weighs 20 times as much: a probability of 20 / 21 is right for all of them.

    The median must exceed 0.75 after a short training; predictions of rows at the edge widen.
    """
    X = np.repeat(np.random.default_rng(0).normal(size=(60, 2)), 2, axis=0)
    y = np.tile([0, 1], 60)
    settings = {"width": 4, "learning_rate": 0.01, "random_state": 0}
    clf = ltnode.LTNodeClassifier(max_epochs=8, **settings).fit(X, y, sample_weight=np.where(y == 1, 20, 1))
    assert np.median(clf.predict_proba(X)[:, 1]) > 0.75
    clf = ltnode.LTNodeClassifier(**settings)
    for _ in range(8):
        clf.partial_fit(X, y, classes=[0, 1], sample_weight=np.where(y == 1, 1, 20))
    assert np.median(clf.predict_proba(X)[:, 0]) > 0.75


@pytest.mark.no_typecheck
def test_wrong_weights_are_refused():
    X, y = table(30)
    reg = ltnode.LTNodeRegressor(**QUICK)
    for weights, message in (
        (np.ones(29), r"must have shape \(30,\), one weight per row, not \(29,\)"),
        (np.ones((30, 1)), r"must have shape \(30,\)"),
        (np.r_[-1.0, np.ones(29)], "must be at least 0, but row 0 has -1"),
        (np.zeros(30), "all weights are zero"),
    ):
        with pytest.raises(InputError, match=message):
            reg.fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match="NaN"):
        reg.fit(X, y, sample_weight=np.r_[np.nan, np.ones(29)])
    gp = ltnode.build("mc-dropout", InputSpec((2,), "regression"), seed=0)
    with pytest.raises(InputError, match="cannot weight its examples"):
        gp.weighted_loss(torch.zeros(2, 2), torch.zeros(2), torch.ones(2))
