"""The captured step of latent-time models on a CPU with emulated graphs: everything except the graph itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulated_graphs import emulate, floats

from ltnode.accelerate.graph_step import GraphStep
from ltnode.models import InputSpec, build
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.training import TrainConfig
from ltnode.training.checkpoint import Checkpoint, restore_training, training_tensors
from ltnode.training.step import make_averages, make_optimizers

pytestmark = pytest.mark.no_typecheck  # an emulated graph is not a torch.cuda.CUDAGraph
CONFIG = TrainConfig(optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=1e-3, seed=3)
SETTINGS = StepSettings(CONFIG.precision, CONFIG.seed, n_data=100)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


def model_of(name: str) -> LatentTimeODE:
    model = build(name, InputSpec((2,), "classification", 3), seed=0).train()
    assert isinstance(model, LatentTimeODE)
    return model


def graph_step(model: LatentTimeODE, averaging: float | None = None) -> GraphStep:
    optimizers = make_optimizers(model, CONFIG)
    averages = make_averages(optimizers, CONFIG.replace(averaging=averaging))
    return GraphStep(model, optimizers, SETTINGS, fused=False, averages=averages)


def batch(step: int, size: int, soft: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 2, generator=generator)
    probs = torch.softmax(torch.randn(size, 3, generator=generator), 1) if soft else None
    return Batch(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), torch.arange(size) + 7 * step, step, soft=probs)


@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
def test_the_step_is_that_of_the_eager_one(name: str):
    """The steps cross a block of end-times drawn ahead and use two batch sizes; only the flat update rounds differently."""
    reference, model = model_of(name), model_of(name)
    eager = EagerStep(reference, make_optimizers(reference, CONFIG), SETTINGS)
    step = graph_step(model)
    for number, size in zip(range(61, 67), (8, 8, 5, 8, 5, 8), strict=True):
        expected, got = eager(batch(number, size)), step(batch(number, size))
        assert list(got) == list(expected)
        assert floats(got) == pytest.approx(floats(expected), rel=1e-4, abs=1e-6), number
    for (label, a), b in zip(reference.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5, msg=label)
    assert step.counts()["masked_updates"] == 0


@pytest.mark.parametrize("name", ["node", "lt-node", "alt-node"])
def test_averages_and_soft_targets_are_those_of_the_eager_step(name: str):
    """Losses towards class probabilities, and the average of the weights after six steps, agree as the weights do."""
    reference, model = model_of(name), model_of(name)
    optimizers, config = make_optimizers(reference, CONFIG), CONFIG.replace(averaging=0.9)
    averages = make_averages(optimizers, config)
    eager, step = EagerStep(reference, optimizers, SETTINGS, averages=averages), graph_step(model, averaging=0.9)
    for number, size in zip(range(6), (8, 8, 5, 8, 5, 8), strict=True):
        expected, got = eager(batch(number, size, soft=True)), step(batch(number, size, soft=True))
        assert floats(got) == pytest.approx(floats(expected), rel=1e-4, abs=1e-6), number
    average = step._average
    assert average is not None and int(average.count) == int(averages["main"].count) == 6
    for a, b in zip(averages["main"].averaged(), average.averaged(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)
    labels, hard = batch(9, 8), torch.nn.functional.one_hot(batch(9, 8).y, 3).float()
    times = reference.training_times(8, 0, 9, labels.indices)
    losses = [reference.loss(labels.x, y, 100, times) for y in (labels.y, hard)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)  # labels are certain probabilities


def test_a_captured_training_continues_from_the_averages_of_a_checkpoint():
    """Four steps, and two steps before and after the state was stored and restored, give the same average, bit for bit."""
    whole, first = graph_step(model_of("lt-node"), averaging=0.9), graph_step(model_of("lt-node"), averaging=0.9)
    for number in range(4):
        whole(batch(number, 8))
    for number in range(2):
        first(batch(number, 8))
    second = graph_step(model_of("lt-node"), averaging=0.9)
    tensors = training_tensors(first.model, {"main": first.optimizer}, {"main": first._average})
    stored = Checkpoint(2, {name: tensor.clone() for name, tensor in tensors.items()}, {})
    restore_training(second.model, {"main": second.optimizer}, stored, Path(), {"main": second._average})
    second.model.load_solver_state(first.model.solver_state())
    for number in range(2, 4):
        second(batch(number, 8))
    assert second._average is not None and whole._average is not None
    assert int(second._average.count) == 4
    assert all(torch.equal(a, b) for a, b in zip(whole._average.sums, second._average.sums, strict=True))


def test_a_failed_check_masks_the_update_and_leaves_no_trace():
    """On a grid that is far too coarse, weights, posterior, momentum and average stay bit for bit, and a new grid is searched."""
    model = model_of("lt-node")
    step = graph_step(model, averaging=0.9)
    average = step._average
    assert average is not None
    for number in range(4):
        step(batch(number, 8))
    sums = [total.clone() for total in average.sums]
    with torch.no_grad():  # a field that is far too fast for the training grid
        for p in model.field.parameters():
            p.mul_(8.0)
    before = [p.detach().clone() for p in step.optimizer_step.parameters]
    momentum = [step.optimizer.state[p]["momentum_buffer"].clone() for p in step.optimizer_step.parameters]
    step(batch(4, 8))
    assert step.counts()["masked_updates"] == 1
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, step.optimizer_step.parameters, strict=True))
    kept = [step.optimizer.state[p]["momentum_buffer"] for p in step.optimizer_step.parameters]
    assert all(torch.equal(a, b) for a, b in zip(momentum, kept, strict=True))
    assert int(average.count) == 4 and all(torch.equal(a, b) for a, b in zip(sums, average.sums, strict=True))
    searches = step.policy.grid.n_searches
    for number in range(5, 10):  # the host reads the check a few steps later
        step(batch(number, 8))
    assert step.policy.grid.n_searches > searches and step.policy.grid.n_failed_checks >= 1
    assert not all(torch.equal(a, b.detach()) for a, b in zip(before, step.optimizer_step.parameters, strict=True))
