"""Several networks in one solve: the reference is the solve of each network."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from ltnode.accelerate import execution as execution_module
from ltnode.accelerate import joint_solve
from ltnode.accelerate.execution import FusedSolves
from ltnode.accelerate.joint_fields import alike, one_by_one, vectorised
from ltnode.models import Ensemble, InputSpec, LatentTimeODE, Prediction, build
from ltnode.models.execution import REFERENCE, using
from ltnode.models.images import ConvField
from ltnode.models.vectors import TimeMLP, paper_field
from ltnode.typing import Tensor

VECTORS = InputSpec((2,), "classification", 3)
IMAGES = InputSpec((1, 10, 10), "classification", 3)
TARGETS = InputSpec((2,), "regression")
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
"""Products of all networks at once and of each one are rounded differently, also in float32 convolutions."""


def ensemble(of: str, data: InputSpec) -> Ensemble:
    model = build("ensemble", data, seed=0, width=4, members=3, of=of)
    assert isinstance(model, Ensemble)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, *data.shape, generator=generator)
    y = torch.randn(20, generator=generator) if data.n_classes is None else torch.randint(3, (20,), generator=generator)
    model.finish_training(x, y)
    model.fit_familiarity(x, y)
    return model.eval()


def roughen(model: Ensemble) -> None:
    """Make the field of one network so steep that some inputs need finer grids than the stored one."""
    network = model.networks[1]
    assert isinstance(network, LatentTimeODE)
    with torch.no_grad():
        for p in network.field.parameters():
            p.mul_(6.0)


def both(model: Ensemble, x: Tensor, samples: int, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> Sequence[Prediction]:
    """Predict network by network, and together with the fields at once or one by one."""
    with using(REFERENCE):
        alone = model.predict(x, samples)
    monkeypatch.setattr(joint_solve, "faster_together", lambda x: True)
    monkeypatch.setattr(execution_module, "faster_together", lambda x: True)
    monkeypatch.setattr(joint_solve, "joint_field", vectorised if at_once else one_by_one)
    with using(FusedSolves()):
        return alone, model.predict(x, samples)


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("of", ["node", "lt-node", "alt-node"])
@pytest.mark.parametrize("data", [VECTORS, IMAGES, TARGETS], ids=["vectors", "images", "regression"])
def test_networks_are_solved_as_if_alone(of: str, data: InputSpec, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S = 5 of 3 networks gives two, two and one end-times, which the joint solve pads."""
    model, x = ensemble(of, data), torch.randn(6, *data.shape)
    alone, together = both(model, x, 5, monkeypatch, at_once)
    torch.testing.assert_close(together.outputs, alone.outputs, **ROUNDING)
    torch.testing.assert_close(together.distance, alone.distance, rtol=1e-4, atol=1e-4)
    assert torch.equal(together.times, alone.times)
    assert together.stats is not None
    assert alone.stats is not None
    if not alone.stats.n_refreshed and of == "node":
        assert together.stats == alone.stats


@pytest.mark.parametrize("of", ["node", "alt-node"])
@pytest.mark.parametrize("halvings", [5, 0], ids=["finer grids", "adaptive steps"])
def test_only_the_solves_that_fail_are_refined(of: str, halvings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One network needs finer steps for some inputs, or, after all halvings, adaptive ones; the others keep their first solve."""
    monkeypatch.setattr("ltnode.ode.prediction_grid._MAX_HALVINGS", halvings)
    model, x = ensemble(of, VECTORS), 3 * torch.randn(8, 2)
    roughen(model)
    alone, together = both(model, x, 6, monkeypatch, at_once=True)
    assert together.stats is not None
    assert together.stats.n_refreshed > 0 or not halvings
    torch.testing.assert_close(together.outputs, alone.outputs, rtol=1e-3, atol=1e-3)


def test_where_it_is_faster() -> None:
    """Small batches of vectors on a CPU; a fixed rule, so that a prediction is reproducible."""
    assert joint_solve.faster_together(torch.zeros(64, 3))
    assert not joint_solve.faster_together(torch.zeros(65, 3))
    assert not joint_solve.faster_together(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: TimeMLP(6), (6,)), (lambda: ConvField(8), (8, 5, 5)), (lambda: paper_field().eval(), (50,))],
    ids=["mlp", "convolutions", "batch-norm"],
)
def test_fields_at_once_are_the_fields(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    """Values and gradients of the weights, to the rounding of float32 products and grouped convolutions."""
    torch.manual_seed(0)
    fields, h, t = [make() for _ in range(3)], torch.randn(3, 4, *shape), torch.tensor(0.3)
    assert alike(fields)
    expected, found = one_by_one(fields)(t, h), vectorised(fields)(t, h)
    torch.testing.assert_close(found, expected, **ROUNDING)
    weights = [p for field in fields for p in field.parameters()]
    slopes = (torch.autograd.grad(out.square().mean(), weights) for out in (expected, found))
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)


def test_only_equal_fields_of_known_modules_are_alike() -> None:
    """Fields that differ in more than the values of their tensors, and custom modules, run one after the other."""

    class Custom(nn.Module):
        def forward(self, t: Tensor, h: Tensor) -> Tensor:
            return h

    assert not alike([TimeMLP(6), TimeMLP(6, activation=nn.ReLU)])
    assert not alike([TimeMLP(6), TimeMLP(6, hidden=(8,))])
    assert not alike([Custom(), Custom()])
    other = ConvField(8)
    other.norm1.eps = 1e-3
    assert not alike([ConvField(8), other])


def test_networks_stay_as_they_are() -> None:
    """The weights of the networks are read, never replaced, because another thread may use them."""
    fields = [TimeMLP(4), TimeMLP(4)]
    before = [p for field in fields for p in field.parameters()]
    vectorised(fields)(torch.tensor(0.1), torch.randn(2, 3, 4))
    assert all(a is b for a, b in zip(before, (p for field in fields for p in field.parameters()), strict=True))
