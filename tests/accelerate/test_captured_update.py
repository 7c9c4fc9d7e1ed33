"""Updates of captured steps: those of the optimiser itself, unless the flag on the device says that the step does not count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ltnode.accelerate.captured_update import CapturedOptimizer, captured_update, has_state, unsupported_reason_update
from ltnode.accelerate.flat_sgd import FlatSGD
from ltnode.models.averaging import WeightAverage

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adam, amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 0.01}),
    "sgd, dampening": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}),
    "sgd, maximize": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "maximize": True}),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind, options = OPTIMIZERS[name]
    first, *others = model.parameters()
    return kind([{"params": [first], "lr": 0.02}, {"params": others}], **options)


def gradients(model: nn.Module, step: int, factor: float = 1.0) -> list[Tensor]:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    loss = factor * model(x).square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def eager(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for p, gradient in zip(model.parameters(), gradients(model, step), strict=True):
        p.grad = gradient
    optimizer.step()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = [value for p in model.parameters() for value in optimizer.state[p].values() if isinstance(value, Tensor)]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *state)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_optimiser_and_a_masked_one_changes_nothing(name: str):
    """After an eager step, six captured ones give the weights of seven eager ones.

    One of the six is tried with an invalid gradient first, and leaves weights, state and counts bit for bit. The learning rate
    changes on the way, as by a schedule. Fused updates round differently, so that the weights agree to 1e-6.
    """
    reference, model = network(), network()
    plain, own = optimizer_of(name, reference), optimizer_of(name, model)
    assert not has_state(own)
    for step in range(7):
        if step == 4:
            for optimizer in (plain, own):
                optimizer.param_groups[1]["lr"] *= 0.1
        eager(reference, plain, step)
        if step == 0:
            eager(model, own, step)
            assert has_state(own)
            update = captured_update(own)
            assert isinstance(update, CapturedOptimizer)
            continue
        update.refresh_rates()
        if step == 3:
            before = everything(model, own)
            update.update(gradients(model, step, torch.nan), torch.tensor(False))
            assert all(torch.equal(a, b) for a, b in zip(before, everything(model, own), strict=True))
        update.update(gradients(model, step), torch.tensor(True))
    for a, b in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
    assert [group["lr"] for group in own.param_groups] == [group["lr"] for group in plain.param_groups]
    assert all(isinstance(group["lr"], float) for group in own.param_groups)  # what schedules and checkpoints expect


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_the_eager_step_continues_where_captured_ones_ended(name: str):
    """Three steps of each kind end at the weights of six eager ones, so that a step that cannot be captured can take over."""
    reference, model = network(), network()
    plain, own = optimizer_of(name, reference), optimizer_of(name, model)
    for step in range(6):
        eager(reference, plain, step)
    eager(model, own, 0)
    update = captured_update(own)
    for step in (1, 2):
        update.update(gradients(model, step), torch.tensor(True))
    update.release()
    for step in (3, 4, 5):
        eager(model, own, step)
    for a, b in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
    assert all(state["step"].device.type == "cpu" for state in own.state.values())


def test_the_average_takes_part_in_the_mask():
    """The average of the weights after three valid updates and two masked ones is that of three eager updates."""
    reference, model = network(), network()
    plain, own = optimizer_of("adam", reference), optimizer_of("adam", model)
    averages = WeightAverage(reference.parameters(), 0.9), WeightAverage(model.parameters(), 0.9)
    eager(model, own, 0)
    averages[1].update()
    update = captured_update(own, averages[1])
    for step in range(3):
        eager(reference, plain, step)
        averages[0].update()
        if step:
            update.update(gradients(model, step, torch.nan), torch.tensor(False))
            update.update(gradients(model, step), torch.tensor(True))
    assert int(averages[0].count) == int(averages[1].count) == 3
    for a, b in zip(averages[0].averaged(), averages[1].averaged(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_plain_sgd_keeps_its_kernel_and_what_cannot_be_captured_has_a_reason():
    """SGD with one momentum is updated by the flat kernel; host decisions, hooks and differentiable updates have reasons."""
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert isinstance(captured_update(sgd), FlatSGD) and has_state(sgd)
    assert unsupported_reason_update(sgd) is None
    assert "capturable" in str(unsupported_reason_update(torch.optim.LBFGS(model.parameters())))
    hooked = torch.optim.Adam(model.parameters())
    assert unsupported_reason_update(hooked) is None
    hooked.register_step_post_hook(lambda *_: None)
    assert "step hook" in str(unsupported_reason_update(hooked))
    assert "differentiable" in str(unsupported_reason_update(torch.optim.Adam(model.parameters(), differentiable=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_can_be_captured(name: str):
    """A CUDA graph of the update, replayed with valid and masked flags, gives the weights of eager steps to 1e-5."""
    reference, model = network().cuda(), network().cuda()
    plain, own = optimizer_of(name, reference), optimizer_of(name, model)
    x = torch.randn(16, 4, device="cuda")

    def of(net: nn.Module) -> list[Tensor]:
        return list(torch.autograd.grad(net(x).square().mean(), list(net.parameters())))

    def eager_cuda(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for p, gradient in zip(net.parameters(), of(net), strict=True):
            p.grad = gradient
        optimizer.step()

    eager_cuda(reference, plain)
    eager_cuda(model, own)
    update, valid = captured_update(own), torch.zeros((), dtype=torch.bool, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        update.update(of(model), valid)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update.update(of(model), valid)
    for step in range(6):
        if step == 3:
            for optimizer in (plain, own):
                optimizer.param_groups[0]["lr"] *= 0.5
            update.refresh_rates()
        valid.fill_(False)
        graph.replay()
        valid.fill_(True)
        graph.replay()
        eager_cuda(reference, plain)
    for a, b in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
