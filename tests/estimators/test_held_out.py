"""Held-out rows determine the softening and the epoch that is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import ltnode
from ltnode.data import Split
from ltnode.estimators.epochs import Patience, TableTraining
from ltnode.estimators.held_out import judge, soften_
from ltnode.models import Prediction


def test_the_softening_is_the_temperature_that_calibrates_the_logits(generator):
    """Labels drawn from softmax(logits) are fitted best by 1, or by 3 if the logits are tripled. Steps of 10 %, 4,000 labels."""
    logits = 2 * torch.randn(1, 4000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(logits[0], -1), 1, generator=generator)[:, 0]
    times = torch.ones(1, dtype=torch.float64)
    assert judge(Prediction("classification", logits, times), y).softening == pytest.approx(1, abs=0.11)
    assert judge(Prediction("classification", 3 * logits, times), y).softening == pytest.approx(3, rel=0.11)
    # Underconfident logits are not sharpened.
    assert judge(Prediction("classification", logits / 3, times), y).softening == 1


def test_the_softening_finds_the_noise_of_the_residuals(generator):
    """Residuals of standard deviation 2: a factor of 4 for an assumed noise of 0.5, and 1/4 for one of 8. Steps of 10 %.

    Reference for the value: the Gaussian log-likelihood.
    """
    outputs = torch.zeros(3, 4000, 1, dtype=torch.float64)
    y = 2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    times = torch.ones(3, dtype=torch.float64)
    underconfident = judge(Prediction("regression", outputs, times, noise=torch.tensor(8.0).double()), y)
    assert underconfident.softening == pytest.approx(1 / 4, rel=0.08)
    judgement = judge(Prediction("regression", outputs, times, noise=torch.tensor(0.5).double()), y)
    assert judgement.softening == pytest.approx(4, rel=0.08)
    normal = torch.distributions.Normal(torch.zeros(()).double(), 0.5 * judgement.softening)
    assert judgement.log_likelihood == pytest.approx(float(normal.log_prob(y).mean()), rel=1e-9)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_softening_is_built_into_the_model(task, generator):
    """Logits are divided, or the noise is multiplied, by the factor; float64, hence 1e-12."""
    model = ltnode.build("lt-node", ltnode.InputSpec((3,), task, 4 if task == "classification" else None), seed=0).double()
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    before = model.predict(x)
    soften_(model, torch.tensor(2.5, dtype=torch.float64))
    after = model.predict(x)
    if task == "classification":
        torch.testing.assert_close(after.outputs, before.outputs / 2.5, rtol=1e-12, atol=1e-12)
    else:
        torch.testing.assert_close(after.noise_std, 2.5 * before.noise_std, rtol=1e-12, atol=0)
        torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=0)


def test_the_best_epoch_is_kept_and_patience_ends_the_training(rng):
    """Random labels are memorised: the held-out likelihood falls, training stops, and the model of the best epoch is restored."""
    X = rng.normal(size=(120, 5))
    y = rng.integers(0, 2, 120)
    model = ltnode.LTNodeClassifier(max_epochs=40, n_iter_no_change=3, learning_rate=0.01, random_state=0).fit(X, y)
    scores = model.validation_scores_
    assert model.n_iter_ == len(scores) == len(model.loss_curve_) < 40
    best = int(np.argmax(scores))
    assert max(scores[best + 1 :], default=-math.inf) <= scores[best] + model.tol


def test_the_kept_model_has_the_best_held_out_likelihood(rng):
    """Judged again after training, without further softening, the model attains the best score of the training (float64).

    The labels can be learnt, so that the training rows need no more softening than the held-out ones.
    """
    x = torch.tensor(rng.normal(size=(90, 4)))
    y = (x[:, 0] > 0).long()
    held_out = Split(x[60:], y[60:])
    model = ltnode.build("lt-node", ltnode.InputSpec((4,), "classification", 2), seed=0).double()
    training = TableTraining(model, Split(x[:60], y[:60]), ltnode.TrainConfig(epochs=6, batch_size=16, lr=0.02, device="cpu"))
    course = training.run(Patience(100, 0.0), held_out)
    again = model.predict(held_out.x)
    value = float(again.log_probs.gather(1, held_out.y[:, None]).mean())
    assert value == pytest.approx(max(course.scores), rel=1e-9)


def test_without_a_held_out_part_the_loss_decides_when_to_stop(rng):
    """With a huge tolerance no epoch after the first counts as an improvement: a patience of 3 ends the training after 4."""
    x, y = torch.tensor(rng.normal(size=(30, 2))), torch.tensor(rng.integers(0, 2, 30))
    model = ltnode.build("node", ltnode.InputSpec((2,), "classification", 2), seed=0).double()
    training = TableTraining(model, Split(x, y), ltnode.TrainConfig(epochs=50, batch_size=16, device="cpu"))
    course = training.run(Patience(3, 1e9))
    assert len(course.losses) == 4 and course.scores == []


def test_the_noise_is_that_of_the_residuals_even_after_a_short_training(rng):
    """Three epochs cannot reduce the noise parameter from 1 to 0.05 at this learning rate; the final softening does.

    A straight line with noise 0.05 and spread 1: the predicted noise equals the RMSE of the residuals up to one step of 10 %,
    since it must not be more confident than the training and the held-out rows justify.
    """
    x = torch.tensor(rng.normal(size=(200, 1)))
    y = x[:, 0] + 0.05 * torch.tensor(rng.normal(size=200))
    for held_out in (Split(x[150:], y[150:]), None):
        model = ltnode.build("node", ltnode.InputSpec((1,), "regression"), seed=0).double()
        training = TableTraining(model, Split(x[:150], y[:150]), ltnode.TrainConfig(epochs=3, batch_size=15, device="cpu"))
        training.run(Patience(100, 0.0), held_out)
        rmse = [
            float((model.predict(part.x).mean - part.y).square().mean().sqrt())
            for part in (training.data.train, held_out)
            if part
        ]
        assert float(model.likelihood.noise_std) == pytest.approx(max(rmse), rel=0.1)
        assert float(model.likelihood.noise_std) < 0.5
