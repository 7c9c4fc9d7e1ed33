"""The captured step of latent-time models on a CPU with emulated graphs: everything except the graph itself."""

from __future__ import annotations

import pytest
import torch
from emulated_graphs import emulate, floats

from ltnode.accelerate.graph_step import GraphStep
from ltnode.models import InputSpec, build
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.training import TrainConfig
from ltnode.training.step import make_optimizers

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


def graph_step(model: LatentTimeODE) -> GraphStep:
    return GraphStep(model, make_optimizers(model, CONFIG), SETTINGS, fused=False)


def batch(step: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 2, generator=generator)
    return Batch(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), torch.arange(size) + 7 * step, step)


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


def test_a_failed_check_masks_the_update_and_leaves_no_trace():
    """On a grid that is far too coarse, weights, posterior and momentum stay bit for bit, and a new grid is searched."""
    model = model_of("lt-node")
    step = graph_step(model)
    for number in range(4):
        step(batch(number, 8))
    with torch.no_grad():  # a field that is far too fast for the training grid
        for p in model.field.parameters():
            p.mul_(8.0)
    before = [p.detach().clone() for p in step.sgd.parameters]
    momentum = [step.optimizer.state[p]["momentum_buffer"].clone() for p in step.sgd.parameters]
    step(batch(4, 8))
    assert step.counts()["masked_updates"] == 1
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, step.sgd.parameters, strict=True))
    kept = [step.optimizer.state[p]["momentum_buffer"] for p in step.sgd.parameters]
    assert all(torch.equal(a, b) for a, b in zip(momentum, kept, strict=True))
    searches = step.policy.grid.n_searches
    for number in range(5, 10):  # the host reads the check a few steps later
        step(batch(number, 8))
    assert step.policy.grid.n_searches > searches and step.policy.grid.n_failed_checks >= 1
    assert not all(torch.equal(a, b.detach()) for a, b in zip(before, step.sgd.parameters, strict=True))
