"""Predictions in CUDA graphs against the reference: emulated graphs on a CPU, and real ones on a GPU."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from emulated_graphs import emulate

from ltnode.accelerate.execution import FusedSolves
from ltnode.accelerate.predicting import captured, graphs
from ltnode.accelerate.predicting.captured import CapturedPredictions
from ltnode.accelerate.predicting.single_pass import SinglePass
from ltnode.device import product_precision
from ltnode.models import InputSpec, Prediction, build
from ltnode.models.execution import REFERENCE, using
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.options import SolverOptions
from ltnode.ode import Stats

pytestmark = pytest.mark.no_typecheck  # an emulated graph is not a torch.cuda.CUDAGraph
CPU = torch.device("cpu")
ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-11}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(captured, "can_capture", lambda device: True)


def model_of(
    name: str = "lt-node", task: str = "classification", device: torch.device = CPU, familiar: bool = True, **options: Any
) -> LatentTimeODE:
    shape = options.pop("shape", (3,))
    torch.manual_seed(0)
    model = build(name, InputSpec(shape, task, 4 if task == "classification" else None), seed=0, **options).to(device)
    assert isinstance(model, LatentTimeODE)
    if familiar:
        x = inputs(60, shape, device, seed=5)
        y = torch.arange(60, device=device) % 4 if task == "classification" else x.flatten(1).sum(dim=1)
        model.finish_training(x, y)
        model.fit_familiarity(x[:30], y[:30])
        model.fit_widening(x[30:50], y[30:50])
        model.calibrate_familiarity(x[50:])
    return model.eval()


def inputs(count: int, shape: tuple[int, ...] = (3,), device: torch.device = CPU, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)).to(device)


def reference(model: LatentTimeODE, x: torch.Tensor, **options: Any) -> Prediction:
    with using(REFERENCE):
        return model.predict(x, **options)


def assert_same(got: Prediction, expected: Prediction, tolerance: float = 2e-5) -> None:
    """Equal up to rounding: the graph computes the same sums in another order, and its dense output in one product."""
    for part in fields(Prediction):
        a, b = getattr(got, part.name), getattr(expected, part.name)
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, name=part.name: f"{name}: {text}")
        elif not isinstance(b, Stats):
            assert a == b, part.name
    assert got.stats is not None and expected.stats is not None
    # Where every input has its own end-times, the graph takes all steps of the grid, whatever the latest of them is.
    own = expected.times.ndim == 2 and expected.distance is None
    assert got.stats == expected.stats or (own and got.stats.n_accepted >= expected.stats.n_accepted)


class Counted:
    """An execution whose captured passes are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernels: bool = True) -> None:
        self.execution, self.captures, self.replays = FusedSolves(CapturedPredictions(kernels)), 0, 0
        init, call = SinglePass.__init__, SinglePass.__call__

        def counted_init(single: SinglePass, *args: Any) -> None:
            self.captures += 1
            init(single, *args)

        def counted_call(single: SinglePass, *args: Any) -> Any:
            self.replays += 1
            return call(single, *args)

        monkeypatch.setattr(SinglePass, "__init__", counted_init)
        monkeypatch.setattr(SinglePass, "__call__", counted_call)

    def predict(self, model: Any, x: torch.Tensor, times: int = 1, **options: Any) -> Prediction:
        with using(self.execution):
            return [model.predict(x, **options) for _ in range(times)][-1]


@pytest.mark.parametrize("draw", ["quantile", "random"])
@pytest.mark.parametrize("familiar", [True, False])
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
def test_the_prediction_is_that_of_the_reference(
    emulated: None, monkeypatch: pytest.MonkeyPatch, name: str, task: str, familiar: bool, draw: str
):
    """For all models, tasks and draws, several times in a row with other inputs, sizes of batch and seeds."""
    model, counted = model_of(name, task, familiar=familiar), Counted(monkeypatch)
    for seed, size in enumerate((5, 8, 6, 5, 7, 8)):
        x = inputs(size, seed=seed)
        assert_same(counted.predict(model, x, draw=draw, seed=seed), reference(model, x, draw=draw, seed=seed))
    assert counted.captures >= 1 and counted.replays >= 2  # random end-times may end in different steps


def test_a_size_is_captured_at_its_second_prediction_and_shared_by_similar_sizes(emulated: None, monkeypatch: pytest.MonkeyPatch):
    model, counted = model_of(), Counted(monkeypatch)
    for size, captures in ((5, 0), (7, 1), (8, 1), (3, 1), (4, 2), (6, 2)):
        counted.predict(model, inputs(size))
        assert counted.captures == captures, size


def test_rows_that_fail_are_solved_on_finer_grids(emulated: None, monkeypatch: pytest.MonkeyPatch):
    """A grid of one step for inputs of different sizes: some rows pass, some pass after one halving, some need the reference."""
    for familiar in (True, False):
        model, counted = model_of("lt-node", familiar=familiar), Counted(monkeypatch)
        for parameter in model.field.parameters():
            parameter.data.mul_(3)
        model.grid = torch.tensor([0.0, float(model.end_time.window[1])], dtype=torch.float64)
        x = inputs(40) * torch.logspace(-3, 2, 40)[:, None]
        expected = reference(model, x)
        assert expected.stats is not None and expected.stats.n_refreshed >= 2
        for _ in range(5):
            assert_same(counted.predict(model, x), expected)
        assert counted.captures >= 2


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
def test_weights_that_are_changed_in_place_are_seen(emulated: None, monkeypatch: pytest.MonkeyPatch, name: str):
    """Also those of the posterior, from which the host has computed end-times, and without a new version of the tensor."""
    model, counted, x = model_of(name), Counted(monkeypatch), inputs(4)
    before = counted.predict(model, x, times=3)
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    after = counted.predict(model, x)
    assert_same(after, reference(model, x))
    assert counted.captures == 1 and not torch.allclose(after.outputs, before.outputs)


CHANGES: dict[str, Callable[[LatentTimeODE], Any]] = {
    "grid": lambda m: setattr(m, "grid", torch.linspace(0.0, float(m.end_time.window[1]), 9, dtype=torch.float64)),
    "familiarity": lambda m: m.fit_familiarity(inputs(40, seed=9), torch.arange(40) % 4),
    "widening": lambda m: m.fit_widening(inputs(40, seed=9) * 3, torch.arange(40) % 4),
    "dtype": lambda m: m.double(),
    "head": lambda m: setattr(m, "head", copy.deepcopy(m.head)),
    "weight": lambda m: setattr(next(m.head.parameters()), "data", next(m.head.parameters()).data * 2),
    "solver": lambda m: setattr(m, "solver", SolverOptions(rtol=1e-4, atol=1e-4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parts_that_are_replaced_are_captured_again(emulated: None, monkeypatch: pytest.MonkeyPatch, change: str):
    model, counted, x = model_of(), Counted(monkeypatch), inputs(4)
    counted.predict(model, x, times=2)
    CHANGES[change](model)
    x = x.to(model.grid.dtype) if change == "dtype" else x
    assert_same(counted.predict(model, x, times=2), reference(model, x))
    assert counted.captures == 2


def test_a_hook_is_called_and_unknown_layers_run_as_they_are(emulated: None, monkeypatch: pytest.MonkeyPatch):
    model, counted, x = model_of(), Counted(monkeypatch), inputs(4)
    counted.predict(model, x, times=2)
    calls = []
    handle = model.head.register_forward_hook(lambda *args: calls.append(1))
    counted.predict(model, x, times=2)
    assert len(calls) == 2
    handle.remove()
    replays = counted.replays

    class Own(torch.nn.Module):
        def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return -h

    model.field = Own()
    counted.predict(model, x, times=2)
    assert counted.replays == replays


def test_large_batches_go_in_parts(emulated: None, monkeypatch: pytest.MonkeyPatch):
    """The limit is lowered; the last part is smaller than the others."""
    monkeypatch.setattr(graphs, "MOST_ROWS", 16)
    for name, draw in (("lt-node", "quantile"), ("alt-node", "random")):
        model, counted, x = model_of(name), Counted(monkeypatch), inputs(40)
        assert_same(counted.predict(model, x, times=4, draw=draw), reference(model, x, draw=draw))
        assert counted.replays >= 3


def test_few_graphs_are_kept(emulated: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "_MOST_GRAPHS", 2)
    model, counted, x = model_of(), Counted(monkeypatch), inputs(4)
    for samples in (2, 3, 4):
        counted.predict(model, x, times=2, samples=samples)
    counted.predict(model, x, samples=4)
    assert counted.captures == 3
    counted.predict(model, x, samples=2)
    assert counted.captures == 4


def test_models_can_be_copied_and_pickled(emulated: None, monkeypatch: pytest.MonkeyPatch):
    model, counted, x = model_of(), Counted(monkeypatch), inputs(4)
    expected = counted.predict(model, x, times=2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(counted.predict(other, x, times=2), expected)


def test_earlier_predictions_keep_their_values(emulated: None, monkeypatch: pytest.MonkeyPatch):
    """Predictions share no memory with the graph."""
    model, counted = model_of(), Counted(monkeypatch)
    first = counted.predict(model, inputs(4), times=2)
    kept = first.outputs.clone()
    counted.predict(model, inputs(4, seed=3))
    assert torch.equal(first.outputs, kept)


# -- on a GPU ----------------------------------------------------------------------------------------------------------------

IMAGES = (3, 32, 32)


@pytest.fixture
def cuda() -> torch.device:
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("draw", ["quantile", "random"])
@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
def test_images_on_a_gpu(monkeypatch: pytest.MonkeyPatch, cuda: torch.device, name: str, draw: str, kernels: bool):
    """In float32, by the fused kernels and by the layers: 1e-5 of rounding, amplified by the norms and the standardisation."""
    with product_precision("fp32"):
        model, counted = model_of(name, device=cuda, shape=IMAGES), Counted(monkeypatch, kernels)
        for seed, size in enumerate((1, 1, 64, 50, 64)):
            x = inputs(size, IMAGES, cuda, seed=seed)
            assert_same(counted.predict(model, x, draw=draw), reference(model, x, draw=draw), 1e-4)
        assert counted.replays >= 3


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", ["node", "lt-node", "alt-node"])
def test_vectors_on_a_gpu(monkeypatch: pytest.MonkeyPatch, cuda: torch.device, name: str, task: str):
    with product_precision("fp32"):
        model, counted = model_of(name, task, device=cuda), Counted(monkeypatch)
        for seed, size in enumerate((1, 1, 64, 50, 64)):
            x = inputs(size, device=cuda, seed=seed)
            assert_same(counted.predict(model, x), reference(model, x), 1e-4)
        assert counted.replays >= 3


@pytest.mark.gpu
def test_batches_of_one_and_of_many_agree_on_a_gpu(monkeypatch: pytest.MonkeyPatch, cuda: torch.device):
    with product_precision("fp32"):
        model, counted, x = model_of(device=cuda, shape=IMAGES), Counted(monkeypatch), inputs(1000, IMAGES, cuda)
        together = counted.predict(model, x, times=2)
        alone = Prediction.cat([counted.predict(model, row[None]) for row in x[:50]])
        assert float((alone.probs - together.probs[:50]).abs().max()) <= 1e-5


@pytest.mark.gpu
def test_bf16_and_tf32_are_close_on_a_gpu(monkeypatch: pytest.MonkeyPatch, cuda: torch.device):
    """Probabilities agree to the rounding of the products: 2^-11 for TF32 and 2^-8 for bfloat16, over some 60 layers."""
    model, counted, x = model_of(device=cuda, shape=IMAGES), Counted(monkeypatch), inputs(256, IMAGES, cuda)
    with product_precision("fp32"):
        exact = reference(model, x)
    with product_precision("tf32"):
        assert float((counted.predict(model, x, times=2).probs - exact.probs).abs().max()) <= 5e-3
    with product_precision("fp32"), torch.autocast("cuda", dtype=torch.bfloat16):
        assert float((counted.predict(model, x, times=2).probs - exact.probs).abs().max()) <= 4e-2
        for parameter in model.parameters():  # the graph must not read a copy of the weights
            parameter.data.mul_(1.1)
        changed = counted.predict(model, x)
    assert counted.captures == 2
    with product_precision("fp32"):
        assert float((changed.probs - reference(model, x).probs).abs().max()) <= 4e-2


@pytest.mark.gpu
def test_a_model_is_freed_with_its_graphs(monkeypatch: pytest.MonkeyPatch, cuda: torch.device):
    model, counted = model_of(device=cuda, shape=IMAGES), Counted(monkeypatch)
    counted.predict(model, inputs(64, IMAGES, cuda), times=2)
    assert counted.captures == 1
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None


@pytest.mark.gpu
def test_models_are_trained_in_between_on_a_gpu(monkeypatch: pytest.MonkeyPatch, cuda: torch.device):
    model, counted, x = model_of(device=cuda, shape=IMAGES), Counted(monkeypatch), inputs(32, IMAGES, cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    y = torch.arange(32, device=cuda) % 4
    for _ in range(3):
        with product_precision("fp32"):
            assert_same(counted.predict(model, x), reference(model, x), 1e-4)
        model.train()
        optimizer.zero_grad()
        model.loss(x, y, n_data=32).backward()
        optimizer.step()
    assert counted.captures == 1
