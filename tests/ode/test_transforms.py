"""The fixed-grid path under torch.compile, torch.export and torch.func."""

from __future__ import annotations

import inspect

import pytest
import torch
from ode_problems import F64, MLPField, swirl
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, jacrev, jvp, vmap

from ltnode.errors import InputError
from ltnode.ode import Solution, Stats, odesolve
from ltnode.ode.dense import DenseOutput
from ltnode.ode.problem import Problem
from ltnode.ode.search import Search, Tolerance


def _grids(n: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    """Two grids of n steps that cover [0, 2], with different values."""
    even = torch.linspace(0.0, 2.0, n + 1, dtype=dtype)
    return even, 1.1 * even**1.3


@pytest.fixture(autouse=True)
def _fresh_dynamo(monkeypatch):
    # torch.compile cannot trace through the wrappers that the shape checks put around methods.
    for cls in (Tolerance, Problem, Search, Stats, Solution, DenseOutput):
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method):
                monkeypatch.setattr(cls, name, inspect.unwrap(method))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("method", "n_steps", "own_times"),
    [("dopri5", 2, False), ("dopri5", 2, True), ("bosh3", 2, False), ("rk4", 2, True), ("euler", 10, False), ("euler", 10, True)],
)
def test_compiles_without_graph_breaks_and_once_for_all_values(method: str, n_steps: int, own_times: bool) -> None:
    """fullgraph=True raises on graph breaks; other grids, times and states of the same shapes must not recompile.

    Euler takes ten steps, more than one chunk of the dense output. Equal to eager float64 to 1e-12.
    """
    counter = CompileCounterWithBackend("eager")

    def solve(y0: Tensor, times: Tensor, grid: Tensor) -> Tensor:
        return odesolve(swirl, y0, times, method=method, grid=grid).states

    compiled = torch.compile(solve, fullgraph=True, backend=counter, dynamic=False)
    for grid in _grids(n_steps):
        y0 = torch.randn(3, 2, dtype=F64)
        times = 2 * torch.rand((4, 3) if own_times else 4, dtype=F64)
        torch.testing.assert_close(compiled(y0, times, grid), solve(y0, times, grid), rtol=0, atol=1e-12)
    assert counter.frame_count == 1


def test_compiled_training_pass_has_the_gradients_of_eager() -> None:
    """Forward and backward through aot_eager with a module as field, including parameters; 1e-10, and one compilation."""
    f = MLPField().double()
    counter = CompileCounterWithBackend("aot_eager")

    def loss(y0: Tensor, times: Tensor, grid: Tensor) -> Tensor:
        sol = odesolve(f, y0, times, method="bosh3", grid=grid)
        return sol.states.square().sum() + sol.error_norms.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=counter, dynamic=False)
    for grid in _grids(2):
        y0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
        times = (2 * torch.rand(2, dtype=F64)).requires_grad_()
        leaves = (y0, times, *f.parameters())
        ours = torch.autograd.grad(compiled(y0, times, grid), leaves)
        for a, b in zip(ours, torch.autograd.grad(loss(y0, times, grid), leaves), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert counter.frame_count == 1


def test_compiles_with_a_grid_of_numbers() -> None:
    """Floats become constants of the compiled program, and the result is right."""
    compiled = torch.compile(
        lambda y: odesolve(swirl, y, torch.tensor([1.0, 2.0]), method="rk4", grid=[0.0, 1.0, 2.0]).states,
        fullgraph=True,
        backend="eager",
    )
    y0 = torch.randn(3, 2)
    torch.testing.assert_close(compiled(y0), odesolve(swirl, y0, [1.0, 2.0], method="rk4", grid=[0.0, 1.0, 2.0]).states)


class _Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field = MLPField()

    def forward(self, y0: Tensor, times: Tensor, grid: Tensor) -> Tensor:
        return odesolve(self.field, y0, times, grid=grid).states


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
def test_exports_with_a_dynamic_batch(own_times: bool) -> None:
    """torch.export of a fixed-grid solve: one program for any batch size, times and grid values; float32, 1e-6."""
    model = _Exported()
    batch = torch.export.Dim("batch", min=2, max=64)
    times = 2 * torch.rand((4, 3) if own_times else 4)
    even, uneven = _grids(1)
    shapes = ({0: batch}, {1: batch} if own_times else None, None)
    program = torch.export.export(model, (torch.randn(3, 3), times, even), dynamic_shapes=shapes).module()
    for n in (2, 7):
        y0, t = torch.randn(n, 3), 2 * torch.rand((4, n) if own_times else 4)
        torch.testing.assert_close(program(y0, t, uneven), model(y0, t, uneven), rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_steps", [3, 10])
def test_vmap_over_states_is_a_batch(n_steps: int) -> None:
    """For an element-wise field, vmap over samples equals the batched solve; 1e-13."""
    y0, times, grid = torch.randn(5, 2, dtype=F64), torch.tensor([0.3, 2.0], dtype=F64), _grids(n_steps)[0]
    mapped = vmap(lambda y: odesolve(swirl, y, times, grid=grid).states)(y0)
    torch.testing.assert_close(mapped.transpose(0, 1), odesolve(swirl, y0, times, grid=grid).states, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_steps", [3, 10])
def test_vmap_over_times_is_own_times(n_steps: int) -> None:
    y0, times, grid = torch.randn(5, 2, dtype=F64), 2 * torch.rand(5, 4, dtype=F64), _grids(n_steps)[0]
    mapped = vmap(lambda y, t: odesolve(swirl, y, t, grid=grid).states)(y0, times)
    torch.testing.assert_close(mapped.transpose(0, 1), odesolve(swirl, y0, times.T, grid=grid).states, rtol=0, atol=1e-13)


def test_vmap_over_parameters_is_an_ensemble() -> None:
    members = [MLPField().double() for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(members)
    y0 = torch.randn(4, 3, dtype=F64)

    def solve(parameters: dict[str, Tensor]) -> Tensor:
        return odesolve(lambda t, y: functional_call(members[0], parameters, (t, y)), y0, [1.0, 2.0], grid=[0.0, 1.0, 2.0]).states

    expected = torch.stack([odesolve(f, y0, [1.0, 2.0], grid=[0.0, 1.0, 2.0]).states for f in members])
    torch.testing.assert_close(vmap(solve)(stacked), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"grid": [0.0, 1.0, 2.0]}, {}], ids=["fixed", "adaptive"])
def test_function_transforms_equal_autograd(options: dict[str, object]) -> None:
    """torch.func.grad, jacrev and jvp in y0 agree with torch.autograd to 1e-12; grad and jacrev also for adaptive steps."""
    y0 = torch.randn(2, dtype=F64)

    def solve(y: Tensor) -> Tensor:
        return odesolve(swirl, y, [0.5, 2.0], **options).states

    jacobian = torch.autograd.functional.jacobian(solve, y0)
    torch.testing.assert_close(jacrev(solve)(y0), jacobian, rtol=0, atol=1e-12)
    torch.testing.assert_close(grad(lambda y: solve(y).sum())(y0), jacobian.sum(dim=(0, 1)), rtol=0, atol=1e-12)
    if options:
        tangent = torch.randn(2, dtype=F64)
        torch.testing.assert_close(jvp(solve, (y0,), (tangent,))[1], jacobian @ tangent, rtol=0, atol=1e-12)


def test_per_sample_gradients_by_vmap_of_grad() -> None:
    y0 = torch.randn(5, 2, dtype=F64)

    def loss(y: Tensor) -> Tensor:
        return odesolve(swirl, y, [0.5, 2.0], grid=[0.0, 1.0, 2.0]).states.square().sum()

    expected = torch.stack([torch.autograd.functional.jacobian(loss, y) for y in y0])
    torch.testing.assert_close(vmap(grad(loss))(y0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transform", [vmap, lambda f: vmap(grad(lambda y: f(y).sum()))], ids=["vmap", "vmap of grad"])
def test_vmap_of_adaptive_steps_is_refused_with_the_remedy(transform) -> None:
    """Adaptive steps need values that vmap hides; torch's error message would not name the remedy."""
    with pytest.raises(InputError, match="give grid="):
        transform(lambda y: odesolve(swirl, y, [1.0]).states)(torch.randn(4, 2))
