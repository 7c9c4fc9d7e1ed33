"""The captured step of models without an adaptive solver, on a CPU with emulated graphs and on CUDA."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulated_graphs import emulate, floats

from ltnode.accelerate.execution import FusedLayers
from ltnode.accelerate.phases_step import PhasesGraphStep
from ltnode.accelerate.plan import unsupported_reason_capture, unsupported_reason_device
from ltnode.accelerate.step import AcceleratedStep, accelerated_step
from ltnode.device import autocast
from ltnode.models import Model, build, execution
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.training import TrainConfig
from ltnode.training.step import make_averages, make_optimizers

CONFIG = TrainConfig(model="sde-net", data="mnist", optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=1e-3)
SETTINGS = StepSettings(n_data=1000)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


def sde_net(device: str, seed: int = 0) -> tuple[Model, dict[str, torch.optim.Optimizer]]:
    model = build("sde-net", "mnist", seed=seed).to(device).train()
    return model, make_optimizers(model, CONFIG)


def batch(step: int, size: int, device: str) -> Batch:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 1, 28, 28, generator=generator).to(device)
    y = torch.randint(0, 10, (size,), generator=generator).to(device)
    return Batch(x, y, torch.arange(size, device=device), step)


@pytest.mark.no_typecheck  # an emulated graph is not a torch.cuda.CUDAGraph
def test_both_phases_are_those_of_the_eager_step(emulated: None):
    """Parts of both losses, all weights and their averages agree over batches of two sizes; only the update rounds differently.

    Tolerance 1e-5 for the weights.
    """
    reference, captured = sde_net("cpu"), sde_net("cpu")
    averages = [make_averages(optimizers, CONFIG.replace(averaging=0.9)) for _, optimizers in (reference, captured)]
    eager = EagerStep(*reference, SETTINGS, averages=averages[0])
    step = PhasesGraphStep(*captured, SETTINGS, averages=averages[1])
    for number, size in enumerate((6, 6, 4, 6)):
        torch.manual_seed(number)
        expected = eager(batch(number, size, "cpu"))
        torch.manual_seed(number)
        got = step(batch(number, size, "cpu"))
        assert list(got) == list(expected)
        assert floats(got) == pytest.approx(floats(expected), rel=1e-4, abs=1e-5), number
    for (name, a), b in zip(reference[0].named_parameters(), captured[0].parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5, msg=name)
    for phase in reference[0].phases:
        for one, other in zip(averages[0][phase].averaged(), averages[1][phase].averaged(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
    assert step.counts() == {"masked_updates": 0}


@pytest.mark.no_typecheck
def test_a_loss_that_is_no_number_changes_nothing_and_is_counted(emulated: None):
    """The updates of both phases are masked, and the weights stay bit for bit."""
    model, optimizers = sde_net("cpu")
    step = PhasesGraphStep(model, optimizers, SETTINGS)
    step(batch(0, 4, "cpu"))
    before = [p.detach().clone() for p in model.parameters()]
    bad = batch(1, 4, "cpu")
    bad.x[0, 0, 0, 0] = torch.inf
    monkey = pytest.MonkeyPatch()
    monkey.setattr("ltnode.models.sde_net.check_input", lambda x: None)  # values are not read on CUDA
    try:
        step(bad)
    finally:
        monkey.undo()
    assert step.counts() == {"masked_updates": 2}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_models_that_decide_on_the_host_are_not_captured():
    """An ensemble trains its members one by one; SDE-Net does the same operations in every step."""
    cuda = torch.device("cuda")
    assert unsupported_reason_capture(*sde_net("cpu"), cuda) is None
    ensemble = build("ensemble", "mnist", seed=0)
    assert "decides on the host" in str(unsupported_reason_capture(ensemble, make_optimizers(ensemble, CONFIG), cuda))


@pytest.mark.gpu
def test_sde_net_trains_captured_as_it_does_eagerly():
    """The noise differs between the two, so losses agree on average: means of the last 50 of 100 steps within 10 %."""
    means = []
    for captured in (False, True):
        model, optimizers = sde_net("cuda")
        eager = EagerStep(model, optimizers, SETTINGS)
        step = accelerated_step(eager, batch(0, 1, "cuda").x) if captured else eager
        assert isinstance(step, AcceleratedStep) == captured
        losses = []
        for number in range(100):
            random = batch(number, 64, "cuda")
            labels = random.x.flatten(1)[:, :100].reshape(64, 10, 10).mean(2).argmax(1)
            losses.append(float(step(replace(random, y=labels))["loss"]))
        means.append(sum(losses[50:]) / 50)
        assert not captured or step.counts() == {"masked_updates": 0}
    assert means[1] == pytest.approx(means[0], rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-2), ("bf16", 0.08)])
@pytest.mark.parametrize("phase", ["main", "diffusion"])
def test_fused_layers_have_the_gradients_of_the_layers(precision: str, bound: float, phase: str):
    """Loss and gradient of both phases agree at CIFAR10's shapes with the same noise, up to ReLU masks that rounding flips."""
    model = build("sde-net", "cifar10", seed=0).cuda().train()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 3, 32, 32, generator=generator).cuda(), torch.randint(0, 10, (32,), generator=generator).cuda()
    parameters = [p for group in model.parameter_roles(phase).values() for p in group]
    found = []
    for fused in (False, True):
        torch.manual_seed(1)
        with autocast(precision, x.device), execution.using(FusedLayers() if fused else execution.REFERENCE):
            loss = model.loss(x, y, phase=phase)
        gradient = torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, parameters)])
        found.append((float(loss.detach()), gradient))
    (wanted_loss, wanted), (loss, got) = found
    assert loss == pytest.approx(wanted_loss, rel=bound)
    assert float((got - wanted).norm() / wanted.norm()) < bound


def test_fused_layers_are_the_layers_on_a_cpu():
    """The kernels need CUDA: on a CPU the layers themselves run, and the reason says so."""
    model, x, y = build("sde-net", "mnist", seed=0), torch.randn(2, 1, 28, 28), torch.tensor([0, 1])
    losses = []
    for wanted in (False, True):
        torch.manual_seed(0)
        with execution.using(FusedLayers() if wanted else execution.REFERENCE):
            losses.append(float(model.loss(x, y).detach()))
    assert losses[0] == losses[1]
    assert "cpu" in str(unsupported_reason_device(torch.device("cpu")))
