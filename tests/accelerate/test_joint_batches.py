"""Predictions of several batches in one solve, against `predict` for each batch."""

from __future__ import annotations

import pytest
import torch

import ltnode
from ltnode.accelerate.joint_batches import predict_batches
from ltnode.accelerate.plan import unsupported_reason_joint_batches
from ltnode.models import InputSpec


def image_model(name: str) -> ltnode.LatentTimeODE:
    spec = InputSpec((1, 12, 12), "classification", 3)
    model = ltnode.build(name, spec, seed=0, preset="paper", width=32)
    assert isinstance(model, ltnode.LatentTimeODE)
    with torch.no_grad():  # heads are initialised near zero, where all predictions are equal
        for parameter in model.head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.double()


@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
@pytest.mark.parametrize("draw", ["random", "quantile"])
@pytest.mark.parametrize("seeds", [(5, 5, 5), (1, 2, 3)])
def test_joint_batches_are_predicted_as_alone(name: str, draw: str, seeds: tuple[int, int, int]):
    """End-times and work are equal; in float64, reordered sums differ by 1e-12 of the logits, which ReLUs amplify."""
    model = image_model(name)
    batches = torch.randn(3, 4, 1, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()
    found = predict_batches(model, batches, 5, draw, seeds)
    for x, seed, got in zip(batches, seeds, found, strict=True):
        wanted = model.predict(x, 5, draw, seed, "adaptive")
        assert torch.equal(got.times, wanted.times) and got.stats == wanted.stats
        assert got.outputs.shape == wanted.outputs.shape
        assert torch.allclose(got.outputs, wanted.outputs, atol=1e-8 * float(wanted.outputs.abs().max()))


def test_other_models_are_predicted_one_by_one():
    assert unsupported_reason_joint_batches(image_model("lt-node")) is None
    assert "regression" in str(unsupported_reason_joint_batches(ltnode.build("lt-node", "synthetic", seed=0)))
