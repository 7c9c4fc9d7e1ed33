"""Training solves through the fused trajectory give the caller the same results as solves through the layers.

On the CPU a stand-in for the trajectory, written in torch, replaces the kernels; this tests everything around them (weights of
the dense output, error check, new grids, statistics, when to use them). On CUDA the kernels themselves are tested.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ltnode.accelerate import plan
from ltnode.accelerate import solve as fused_solve
from ltnode.accelerate.kernels.conv_trajectory import FieldTensors
from ltnode.accelerate.plan import unsupported_reason_fused_solve
from ltnode.accelerate.solve import fused_replayer
from ltnode.models import InputSpec, LatentTimeODE, Model, build, execution
from ltnode.models.images import ConvField
from ltnode.models.node_gp import NodeGP
from ltnode.ode import TrainingGrid, odesolve
from ltnode.ode.step import error_norm, take_step
from ltnode.ode.tableau import ButcherTableau, get_tableau

IMAGES = InputSpec((1, 12, 12), "classification", 3)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""Allows for reordered float32 sums over a few steps."""


def standing_in(
    y0: Tensor,
    tensors: FieldTensors,
    starts: Tensor,
    lengths: Tensor,
    tableau: ButcherTableau,
    rtol: float,
    atol: float,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """`conv_trajectory` by layers: stages (J, B, C, H, W) and mean squares (n, B) of the error."""

    def field(t: Tensor, h: Tensor) -> Tensor:
        for i in range(2):
            h = functional.relu(functional.group_norm(h, tensors.groups, tensors.scales[i], tensors.shifts[i]))
            h = functional.conv2d(h, tensors.weights[i], tensors.biases[i], padding=1) + t * tensors.time_maps[i]
        return functional.group_norm(h, tensors.groups, tensors.scales[2], tensors.shifts[2])

    y, stages, squares = y0, [], []
    for left, h in zip(starts.tolist(), lengths.tolist(), strict=True):
        step = take_step(field, tableau, left, h, y, stages[-1] if stages else None)
        squares.append(error_norm(tableau, h, y, step, rtol, atol, True).square())
        stages += step.stages[1:] if stages else step.stages
        y = step.y
    return torch.stack(stages), torch.stack(squares)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Use the stand-in on the CPU; returns the precisions of its calls."""
    calls: list[str] = []

    def recording(*args: object) -> tuple[Tensor, Tensor]:
        calls.append(str(args[-1]))
        return standing_in(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fused_solve, "conv_trajectory", recording)
    monkeypatch.setattr(plan, "unsupported_reason_device", lambda device: None)
    return calls


def rough(name: str, **options: object) -> Model:
    """Return a model whose parameters differ from their special initial values, with a tolerance that takes several steps.

    All inputs of the field's ReLUs are positive (at 3x3 positions and one channel per group they lie above -2.9 times the scale,
    plus 6), because a ReLU that rounding flips changes gradients by a hundredth.
    """
    solver = {"rtol": 1e-4, "atol": 1e-4, **options.pop("solver", {})}  # type: ignore[dict-item]
    model = build(name, IMAGES, seed=0, width=32, solver=solver, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
        field = (model.backbone if isinstance(model, NodeGP) else model).field
        field.norm3.weight.mul_(3.0)
        for norm in (field.norm1, field.norm2):
            norm.bias.add_(6.0)
    return model.train()


def gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["node", "lt-node", "alt-node", "node-gp"])
def test_losses_gradients_and_statistics_are_those_of_the_layers(name: str, passes: list[str]):
    """Losses, gradients, statistics and training grids of three steps agree with those of the layers.

    Rounding differs, so losses agree to 1e-5 and gradients to 1e-3 of the largest; counts are equal.
    """
    options = {"gp": {"grid_size": 16}} if name == "node-gp" else {}
    model = rough(name, **options)
    other = copy.deepcopy(model)
    for step in range(3):
        x, y = torch.randn(6, 1, 12, 12), torch.randint(3, (6,))
        times = None if name == "node-gp" else model.training_times(6, 0, step, torch.arange(6))
        torch.manual_seed(step)
        passes.clear()
        got = model.loss(x, y, n_data=100, times=times)
        used = len(passes)
        torch.manual_seed(step)
        with execution.using(execution.REFERENCE):
            wanted = other.loss(x, y, n_data=100, times=times)
        assert len(passes) == used == 1 + model.solve_stats.n_refreshed
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        assert model.solve_stats == other.solve_stats
        assert model.solve_stats.n_accepted > 1
        assert model.solver_state() == other.solver_state()
        ours, theirs = gradients(model, got), gradients(other, wanted)
        assert ours.keys() == theirs.keys()
        largest = max(float(g.abs().max()) for g in theirs.values())
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=1e-3, atol=1e-3 * largest, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_states_and_norms_are_those_of_the_replay(method: str, per_sample: bool, passes: list[str]):
    """The times are unordered and include 0, an edge and the end; twelve steps exceed one chunk of the dense output."""
    field, h = rough("lt-node").field, torch.randn(4, 32, 3, 3)
    edges = [0.25 * m for m in range(13)]
    times = torch.tensor([1.31, 0.0, 3.0, 0.5, 2.9, 0.01])
    times = times[:, None] * torch.tensor([1.0, 0.3, 0.9, 0.6]) if per_sample else times
    kept, own = TrainingGrid(t_end=3.0, edges=edges), TrainingGrid(t_end=3.0, edges=edges)
    fast = fused_replayer(field, h, times, method, 1.0, 1.0)
    assert fast is not None
    got = odesolve(field, h, times, 1.0, 1.0, method, grid=kept, replayer=fast)
    wanted = odesolve(field, h, times, 1.0, 1.0, method, grid=own)
    assert len(passes) == 1
    torch.testing.assert_close(got.states, wanted.states, **CLOSE)
    torch.testing.assert_close(got.error_norms, wanted.error_norms, rtol=1e-3, atol=1e-6)
    assert torch.equal(got.grid, wanted.grid)
    assert got.stats == wanted.stats


def test_a_failed_check_searches_a_new_grid_and_solves_again(passes: list[str]):
    """When the field becomes ten times as fast, one pass is discarded and a finer grid gives the results of the layers."""
    model = rough("lt-node")
    assert isinstance(model, LatentTimeODE)
    h, times = torch.randn(4, 32, 3, 3), torch.tensor([0.4, 1.7, 2.9])
    model.solve(h, times)
    with torch.no_grad():
        model.field.norm3.weight.mul_(10.0)
    other = copy.deepcopy(model)
    passes.clear()
    got = model.solve(h, times)
    with execution.using(execution.REFERENCE):
        wanted = other.solve(h, times)
    assert len(passes) == 2
    assert got.stats == wanted.stats
    assert got.stats.n_refreshed == 1
    assert model.training_grid.n_failed_checks == 1
    assert model.training_grid == other.training_grid
    torch.testing.assert_close(got.states, wanted.states, rtol=1e-3, atol=1e-3)  # a fast field amplifies rounding errors


def test_the_layers_have_the_last_word():
    """A replayer that never meets the tolerance is tried twice; the third attempt evaluates the field itself."""
    field, h, times = rough("lt-node").field, torch.randn(2, 32, 3, 3), torch.tensor([1.0])
    calls = []

    def never_good(y: Tensor, edges: list[float], at: Tensor) -> fused_solve.Replay:
        calls.append(edges)
        return fused_solve.Replay(y.expand(len(at), *y.shape), torch.full((len(edges) - 1,), 2.0))

    solution = odesolve(field, h, times, grid=TrainingGrid(t_end=1.0), replayer=never_good)
    assert len(calls) == 2
    torch.testing.assert_close(solution.states, odesolve(field, h, times, grid=TrainingGrid(t_end=1.0)).states)


def test_predictions_and_other_grids_go_through_the_layers(passes: list[str]):
    """Prediction grids, adaptive and fixed steps, times beyond the window and recomputation do not use the kernels."""
    model = rough("lt-node")
    assert isinstance(model, LatentTimeODE)
    x, h, times = torch.randn(3, 1, 12, 12), torch.randn(3, 32, 3, 3), torch.tensor([0.5, 2.0])
    model.predict(x)
    model.predict(x, steps="adaptive")
    model.solve(h, torch.tensor([0.5, 3.5]))
    for way in ({"training": "adaptive"}, {"training": "fixed"}, {"recompute": True}):
        other = rough("lt-node", solver=way)
        assert isinstance(other, LatentTimeODE)
        other.solve(h, times)
    assert passes == []
    model.solve(h, times)
    assert len(passes) == 1


def test_the_precision_is_that_of_the_convolutions(passes: list[str], monkeypatch: pytest.MonkeyPatch):
    """The kernels support autocast to bfloat16, and float32 with and without TF32; for autocast to float16 the layers run."""
    field, h, times = rough("lt-node").field, torch.randn(2, 32, 3, 3), torch.tensor([1.0])

    def solve() -> list[str]:
        passes.clear()
        fast = fused_replayer(field, h, times, "dopri5", 1e-2, 1e-2)
        if fast is not None:
            fast(h, [0.0, 1.0], times)
        return list(passes)

    for allowed, precision in ((True, "tf32"), (False, "fp32")):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert solve() == [precision]
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:  # torch.autocast("cuda") does nothing where there is no CUDA
        torch.set_autocast_enabled("cuda", True)
        for dtype, found in ((torch.bfloat16, ["bf16"]), (torch.float16, [])):
            torch.set_autocast_dtype("cuda", dtype)
            assert solve() == found
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


class SubField(ConvField):
    """May compute anything."""


def hooked(field: ConvField) -> ConvField:
    field.conv1.register_forward_hook(lambda *_: None)
    return field


@pytest.mark.parametrize(
    ("field", "side", "times", "method", "reason"),
    [
        (lambda: ConvField(32), 3, torch.ones(1), "dopri5", None),
        (lambda: SubField(32), 3, torch.ones(1), "dopri5", "SubField"),
        (lambda: ConvField(48), 3, torch.ones(1), "dopri5", "48 channels"),
        (lambda: ConvField(32).double(), 3, torch.ones(1), "dopri5", "float32"),
        (lambda: hooked(ConvField(32)), 3, torch.ones(1), "dopri5", "hook"),
        (lambda: ConvField(32), 9, torch.ones(1), "dopri5", "64 positions"),
        (lambda: ConvField(32), 3, torch.ones(1, requires_grad=True), "dopri5", "gradient"),
        (lambda: ConvField(32), 3, torch.ones(1), "rk4", "rk4"),
    ],
)
def test_what_the_kernels_cannot_do_has_a_reason(
    field: Callable[[], ConvField], side: int, times: Tensor, method: str, reason: str | None, passes: list[str]
):
    made = field()
    h = torch.zeros(2, made.norm1.num_channels, side, side)
    found = unsupported_reason_fused_solve(made, h, times, get_tableau(method))
    assert found is None if reason is None else reason in str(found)


def test_on_the_cpu_the_layers_serve():
    """Without CUDA and without the stand-in, the reference runs."""
    h = torch.zeros(2, 32, 3, 3)
    assert "cpu" in str(unsupported_reason_fused_solve(ConvField(32), h, torch.ones(1), get_tableau("dopri5")))
    assert fused_replayer(ConvField(32), h, torch.ones(1), "dopri5", 1e-2, 1e-2) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lt-node", "alt-node", "node-gp"])
def test_fused_training_solves_on_cuda_are_those_of_the_layers(name: str):
    """In full precision at CIFAR10's shapes, states agree to 1e-4 on the same grid, and gradients to 2 % in norm, because
    rounding flips a few of a million ReLUs."""
    model = build(name, "cifar10", seed=0).to("cuda").train()
    solver = model.backbone if isinstance(model, NodeGP) else model
    assert isinstance(solver, LatentTimeODE)
    h = torch.randn(64, 64, 7, 7, device="cuda", requires_grad=True)
    times = torch.ones(1) if name == "node-gp" else solver.training_times(64, 0, 0, torch.arange(64))
    times = times.to("cuda")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        got = solver.solve(h, times)
        assert fused_replayer(solver.field, h, times, "dopri5", 1e-2, 1e-2) is not None
        with execution.using(execution.REFERENCE):
            wanted = solver.solve(h, times)
        weight = torch.randn_like(wanted.states)
        tensors = [h, *solver.field.parameters()]
        ours = torch.autograd.grad((got.states * weight).sum(), tensors)
        theirs = torch.autograd.grad((wanted.states * weight).sum(), tensors)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    torch.testing.assert_close(got.states, wanted.states, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.error_norms, wanted.error_norms, rtol=1e-3, atol=1e-4)
    assert torch.equal(got.grid, wanted.grid)
    floor = 1e-2 * max(float(g.norm()) for g in theirs)  # the gradient of a bias before a norm is mostly rounding error
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).norm()) < 0.02 * max(float(b.norm()), floor)


@pytest.mark.gpu
def test_autocast_training_on_cuda_uses_the_kernels_in_bfloat16():
    """States of a bfloat16 stem stay bfloat16 and agree with those in full precision to 3 % in norm."""
    model = build("lt-node", "cifar10", seed=0).to("cuda").train()
    assert isinstance(model, LatentTimeODE)
    x, times = torch.randn(64, 3, 32, 32, device="cuda"), torch.tensor([0.5, 1.5, 2.9], device="cuda")
    with execution.using(execution.REFERENCE), torch.no_grad():
        wanted = model.solve(model.initial_state(x), times).states
    with torch.autocast("cuda", dtype=torch.bfloat16):
        h = model.initial_state(x)
        assert fused_replayer(model.field, h, times, "dopri5", 1e-2, 1e-2) is not None
        got = model.solve(h, times)
    assert got.states.dtype == h.dtype
    assert got.stats.n_refreshed == 0
    assert float((got.states.float() - wanted).norm() / wanted.norm()) < 0.03
