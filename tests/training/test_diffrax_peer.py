"""The network in `benchmarks/diffrax_peer.py` computes the same as the torch model; skipped without jax."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from repository import load_script

import ltnode

jax = pytest.importorskip("jax")
diffrax = pytest.importorskip("diffrax")


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    return load_script("benchmarks/diffrax_peer.py")


def model_and_batch(dtype: torch.dtype = torch.float32, **solver: Any) -> tuple[ltnode.LatentTimeODE, tuple[torch.Tensor, ...]]:
    """A model whose end-time is not trained, as in JAX, with 8 images, their labels and 4 end-times."""
    model = ltnode.build("lt-node", "cifar10", seed=0, solver=solver).to(dtype).train()
    model.end_time.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, 32, 32, generator=generator), torch.randint(0, 10, (8,), generator=generator)
    return model, (x.to(dtype), y, torch.tensor([0.05, 0.7, 1.9, 3.0], dtype=dtype))


def differences(
    peer: ModuleType, model: ltnode.LatentTimeODE, batch: tuple[torch.Tensor, ...], adjoint: str, controller: Any, updates: int
) -> tuple[list[float], dict[str, float]]:
    """Relative differences between JAX and torch: in the loss before each update, and in the total change of each parameter."""
    x, y, times = batch
    problem, start = peer.problem_of(model, x, y, times, 50_000), peer.parameters_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    step = jax.jit(lambda state, problem: peer.train_step(state, problem, peer.ADJOINTS[adjoint], controller))
    state, of_losses = peer.first_state(start), []
    for _ in range(updates):
        wanted = model.loss(x, y, 50_000, times=times)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        state, loss, solved = step(state, problem)
        assert solved.reached
        of_losses.append(abs(float(loss) / wanted.item() - 1))
    ways = {name: np.asarray(value - start[name]) for name, value in peer.parameters_of(model).items()}
    assert set(ways) == set(state[0]) and {name.split(".")[0] for name in ways} == {"stem", "field", "head"}
    of_ways = {name: np.linalg.norm(state[0][name] - start[name] - way) / np.linalg.norm(way) for name, way in ways.items()}
    return of_losses, of_ways


@pytest.mark.parametrize("adjoint", ["recursive checkpoint", "direct"])
def test_two_updates_on_the_same_steps_are_those_of_torch(peer: ModuleType, adjoint: str):
    """Losses and parameters after two SGD updates agree in float64 on a grid of four steps, up to the order of sums.

    The second update has momentum, and its loss depends on all gradients of the first.
    """
    with jax.enable_x64(True):
        model, batch = model_and_batch(torch.float64, training="fixed", fixed_steps=4)
        grid = diffrax.StepTo(np.linspace(0.0, 3.0, 5))
        of_losses, of_ways = differences(peer, model, batch, adjoint, grid, 2)
    assert max(of_losses) < 1e-10
    assert all(error < 1e-7 for error in of_ways.values()), of_ways


def test_the_continuous_adjoint_comes_near_torch(peer: ModuleType):
    """Backsolve has no common steps with torch. At tolerance 1e-3 ReLUs that switch within a step leave gradients some percent
    apart; a part without its gradient would be 100 % off."""
    model, batch = model_and_batch(training="adaptive", rtol=1e-3, atol=1e-3)
    of_losses, of_ways = differences(peer, model, batch, "backsolve", diffrax.PIDController(rtol=1e-3, atol=1e-3), 1)
    assert max(of_losses) < 1e-4
    assert all(error < 0.2 for error in of_ways.values()), of_ways


def test_a_row_has_the_work_beside_the_time(peer: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Evaluations are the calls of the field that a forward solve makes, counted in the compiled program."""
    model, batch = model_and_batch()
    p, problem = peer.parameters_of(model), peer.problem_of(model, *batch, 50_000)
    row = peer.time_adjoint("direct", p, problem, 1)
    assert set(row) == {"way", "device_ms", "loop_ms", "steps", "evaluations", "peak_gb", "versions"}
    assert row["way"] == "diffrax direct" and row["device_ms"] > 0 and row["loop_ms"] > 0 and 0 < row["peak_gb"] < 2
    calls, field = [], peer.field

    def counted(t: Any, h: Any, args: Any) -> Any:
        jax.debug.callback(calls.append, t)
        return field(t, h, args)

    monkeypatch.setattr(peer, "field", counted)
    solved = jax.jit(lambda p, problem: peer.loss_of(p, problem, peer.ADJOINTS["direct"], peer.CONTROLLER)[1])(p, problem)
    jax.effects_barrier()
    assert int(solved.accepted) == row["steps"] and len(calls) == row["evaluations"]


def test_without_a_gpu_nothing_is_measured(peer: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """The reason is one line."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr("sys.argv", ["diffrax_peer.py"])
    with pytest.raises(SystemExit, match="^diffrax: jax sees no GPU, not measured$"):
        peer.main()
