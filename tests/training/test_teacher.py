"""Training towards a teacher's probabilities: which inputs the teacher sees, how they mix with labels, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_problem import image_data
from torch import Tensor
from torch.nn import functional

import ltnode
from ltnode.data import Augmentation
from ltnode.errors import ConfigError, InputError
from ltnode.training.batches import TrainingData
from ltnode.training.engine import Job, fit, fit_together
from training.tiny import tiny_data, tiny_model

DATA = replace(image_data(), augment=Augmentation(padding=2, flip=True))


def config(**changes: Any) -> ltnode.TrainConfig:
    values = {"epochs": 1, "batch_size": 32, "optimizer": "sgd", "lr": 0.02, "device": "cpu", "log_every": 2, "seed": 1}
    return ltnode.TrainConfig(**{**values, **changes})


def student(seed: int = 0) -> ltnode.Model:
    return ltnode.build("lt-node", DATA, seed=seed, width=34)


def by_brightness(x: Tensor) -> Tensor:
    """Probabilities that depend on the pixels, so that another crop gives others."""
    return torch.softmax(torch.stack([x.mean((1, 2, 3)), x[:, 0, 0].mean(1), x[:, 0, :, 0].mean(1)], 1), 1)


def test_the_teacher_answers_for_exactly_the_crops_of_the_student():
    data = TrainingData.of(DATA, student(), config(), torch.device("cpu"), by_brightness)
    plain = TrainingData.of(DATA, student(), config(), torch.device("cpu"))
    for taught, batch in zip(data.batches(3), plain.batches(3), strict=True):
        assert batch.soft is None and torch.equal(taught.x, batch.x)
        assert taught.soft is not None and torch.equal(taught.soft, by_brightness(taught.x))
        assert torch.equal(taught.target, taught.soft) and torch.equal(batch.target, batch.y)


def test_batches_prepared_together_have_the_same_teacher():
    """On CUDA, 32 batches are prepared and taught at once; the same function on a CPU gives the batches of the plain one."""
    data = TrainingData.of(DATA, student(), config(), torch.device("cpu"), by_brightness)
    order = data.epoch_order(0)
    for one, other in zip(data.batches(0, skip=1), data._cuda_batches(0, 1, order, 32), strict=True):
        assert one.soft is not None and other.soft is not None
        torch.testing.assert_close(one.soft, other.soft, rtol=1e-6, atol=1e-6)
        assert one.step == other.step and torch.equal(one.indices, other.indices)


def test_the_weight_mixes_probabilities_and_labels():
    """The cross-entropy is linear in its target, so that mixing targets mixes losses (float32, 1e-5)."""
    data = TrainingData.of(DATA, student(), config(distill_weight=0.25), torch.device("cpu"), by_brightness)
    batch = next(data.batches(0))
    assert batch.soft is not None
    labels = functional.one_hot(batch.y, 3).float()
    torch.testing.assert_close(batch.soft, 0.25 * by_brightness(batch.x) + 0.75 * labels, rtol=1e-6, atol=1e-6)
    model = student()
    times = model.training_times(len(batch.y), 0, 0, batch.indices)
    losses = [model.loss(batch.x, y, 100, times).detach() for y in (batch.soft, by_brightness(batch.x), batch.y)]
    torch.testing.assert_close(losses[0], 0.25 * losses[1] + 0.75 * losses[2], rtol=1e-5, atol=1e-5)


def test_a_teacher_that_knows_the_labels_gives_the_training_on_labels():
    """Certain probabilities have the gradient of labels; the sums are computed in another order (1e-5)."""

    class Knows:
        """Looks the labels up by the pixels, which are not augmented here."""

        def __init__(self) -> None:
            self.inputs, self.labels = image_data().prepare(image_data().train.x), image_data().train.y

        def __call__(self, x: Tensor) -> Tensor:
            nearest = torch.cdist(x.flatten(1), self.inputs.flatten(1)).argmin(1)
            return functional.one_hot(self.labels[nearest], 3).float()

    taught, plain = student(), student()
    fit(taught, image_data(), config(), teacher=Knows())
    fit(plain, image_data(), config())
    for a, b in zip(taught.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_concurrent_students_learn_as_they_would_alone():
    jobs = [Job(student(seed), DATA, config(seed=seed), teacher=by_brightness if seed else None) for seed in (0, 1)]
    runs = fit_together(jobs)
    for seed, run in enumerate(runs):
        alone = fit(student(seed), DATA, config(seed=seed), teacher=by_brightness if seed else None)
        assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), alone.model.parameters(), strict=True))


def test_the_public_fit_takes_a_teacher():
    run = ltnode.fit(student(), DATA, config(averaging=0.9), teacher=by_brightness)
    assert run.history[-1]["loss"] > 0


def test_models_that_cannot_learn_from_a_teacher_are_refused():
    """Regression has no class probabilities, and the losses of SDE-Net take labels only."""
    with pytest.raises(ConfigError, match="LatentTimeODE for regression cannot be trained towards"):
        fit(tiny_model(), tiny_data(), config(), teacher=by_brightness)
    with pytest.raises(ConfigError, match="SDENet for classification cannot be trained towards"):
        fit(ltnode.build("sde-net", DATA, seed=0), DATA, config(), teacher=by_brightness)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: by_brightness(x)[:, 0], "probabilities"),
        (lambda x: by_brightness(x)[:-1], "probabilities"),
        (lambda x: by_brightness(x)[:, :2], "sum is 1|one column per class"),
        (lambda x: by_brightness(x) - 1.0, "sum is 1"),
        (lambda x: torch.softmax(by_brightness(x)[:, :2], 1), "one column per class, 3, not 2"),
    ],
)
def test_answers_that_are_no_probabilities_are_refused(answer: Any, words: str):
    with pytest.raises(InputError, match=words):
        fit(student(), DATA, config(), teacher=answer)
