"""The captured step of NODE-GP against the eager step, on a CPU with emulated graphs and on CUDA."""

from __future__ import annotations

import pytest
import torch
from emulated_graphs import emulate, floats

from ltnode.accelerate.graph_step import GraphStep
from ltnode.accelerate.plan import unsupported_reason_capture
from ltnode.accelerate.step import AcceleratedStep, accelerated_step
from ltnode.models import Model, build
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.training import TrainConfig
from ltnode.training.step import make_optimizers

pytest.importorskip("gpytorch", reason="NODE-GP needs gpytorch (extra gp)")
CONFIG = TrainConfig(
    model="node-gp", data="mnist", optimizer="sgd", lr=0.05, momentum=0.9, nesterov=True, role_lr={"gp_hyper": 5e-4}
)
SETTINGS = StepSettings(n_data=1000)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


def node_gp(device: str) -> tuple[Model, dict[str, torch.optim.Optimizer]]:
    model = build("node-gp", "mnist", seed=0).to(device).train()
    return model, make_optimizers(model, CONFIG)


def batch(step: int, size: int, device: str) -> Batch:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 1, 28, 28, generator=generator)
    y = x.flatten(1)[:, :100].reshape(size, 10, 10).mean(dim=2).argmax(dim=1)
    return Batch(x.to(device), y.to(device), torch.arange(size, device=device), step)


def eager_step(model: Model, optimizers: dict[str, torch.optim.Optimizer]) -> EagerStep:
    return EagerStep(model, optimizers, SETTINGS)


@pytest.mark.no_typecheck  # an emulated graph is not a torch.cuda.CUDAGraph
def test_the_step_is_that_of_the_eager_one(emulated: None):
    """With the same draws, parts of the loss, weights and bounds of the features agree up to the order of sums (1e-4)."""
    (reference, optimizers), (model, own) = node_gp("cpu"), node_gp("cpu")
    eager, step = eager_step(reference, optimizers), GraphStep(model, own, SETTINGS, fused=False)
    for number in range(3):
        torch.manual_seed(number)
        expected = eager(batch(number, 6, "cpu"))
        torch.manual_seed(number)
        got = step(batch(number, 6, "cpu"))
        assert list(got) == list(expected)
        assert floats(got) == pytest.approx(floats(expected), rel=1e-4), number
    for (name, a), b in zip(reference.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5, msg=name)
    for a, b in zip(reference.bounds.buffers(), model.bounds.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
    assert step.counts()["masked_updates"] == 0 and int(model.bounds.batches) == 3


@pytest.mark.no_typecheck
def test_a_masked_update_leaves_the_bounds_as_they_were(emulated: None):
    """After a NaN loss, weights, momentum and running bounds are unchanged bit for bit, and the update is counted as masked."""
    model, optimizers = node_gp("cpu")
    step = GraphStep(model, optimizers, SETTINGS, fused=False)
    step(batch(0, 4, "cpu"))
    before = [value.detach().clone() for value in (*model.parameters(), *model.bounds.buffers())]
    momentum = [step.optimizer.state[p]["momentum_buffer"].clone() for p in step.optimizer_step.parameters]
    bad = batch(1, 4, "cpu")
    bad.x[0, 0, 0, 0] = torch.nan
    step(bad)
    assert step.counts()["masked_updates"] == 1
    after = [value.detach() for value in (*model.parameters(), *model.bounds.buffers())]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    kept = [step.optimizer.state[p]["momentum_buffer"] for p in step.optimizer_step.parameters]
    assert all(torch.equal(a, b) for a, b in zip(momentum, kept, strict=True))


def test_nothing_is_in_the_way_of_a_capture():
    """The published preset trains by SGD, which can be captured on CUDA."""
    model, optimizers = node_gp("cpu")
    assert unsupported_reason_capture(model, optimizers, torch.device("cuda")) is None


@pytest.mark.gpu
def test_captured_training_learns_like_the_eager_one():
    """60 steps on the same batches with different draws have the same mean loss up to noise (8 draws per step)."""
    means = []
    for requested in ("auto", "off"):
        model, optimizers = node_gp("cuda")
        eager = EagerStep(model, optimizers, SETTINGS, reference=requested == "off")
        step = accelerated_step(eager, batch(0, 1, "cuda").x, requested)
        losses = [float(step(batch(i, 64, "cuda"))["loss"]) for i in range(60)]
        if requested == "auto":
            assert isinstance(step, AcceleratedStep) and step.capturing, "the step fell back to the eager one"
        means.append(sum(losses) / len(losses))
    assert means[0] == pytest.approx(means[1], rel=0.03)
