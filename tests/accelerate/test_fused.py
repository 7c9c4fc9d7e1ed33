"""Choice of the fused path, and the weights of its dense output."""

from __future__ import annotations

import pytest
import torch

from ltnode.accelerate.fused import stage_weights
from ltnode.accelerate.kernels.cuda.interpolated_head import padded_ends
from ltnode.accelerate.plan import unsupported_reason_fused_step
from ltnode.models import build, images
from ltnode.ode.dense import dense_weights
from ltnode.ode.tableau import get_tableau

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
@pytest.mark.parametrize("shape", [(1,), (10,), (20, 3)])
@pytest.mark.parametrize("edges", [[0.0, 3.0], [0.0, 0.2, 0.2, 1.7, 3.0]])
def test_stage_weights_are_the_dense_weights_with_shared_stages_merged(method: str, shape: tuple[int, ...], edges: list[float]):
    """`dense_weights` added by hand, at times inside steps, on edges and with a step of length zero; float32 rounding."""
    tableau = get_tableau(method)
    times = 3.0 * torch.rand(shape)
    on_edges = torch.tensor(edges[1:])[: times.numel()]
    times.view(-1)[: len(on_edges)] = on_edges
    grid = torch.tensor(edges, dtype=torch.float64)
    full = dense_weights(tableau, grid, times)
    per_step = tableau.stages - 1
    expected = torch.zeros(*shape, (len(edges) - 1) * per_step + 1, dtype=torch.float64)
    for m in range(len(edges) - 1):
        expected[..., m * per_step : m * per_step + tableau.stages] += full[..., m, :]
    actual = stage_weights(tableau, grid, times)
    assert actual.dtype == torch.float32 and actual.shape == expected.shape
    assert torch.allclose(actual.double(), expected, rtol=1e-6, atol=1e-6)
    assert padded_ends(actual) is actual


def test_the_reason_against_the_kernels_is_named():
    """A model that the kernels do not support says why, so that the log can report the fallback."""
    vector = build("lt-node", "synthetic", seed=0)
    assert "TimeMLP" in str(unsupported_reason_fused_step(vector, torch.zeros(1, 1), CPU))
    wide = build("lt-node", "mnist", seed=0, width=48)
    assert "48 channels" in str(unsupported_reason_fused_step(wide, torch.zeros(1, 1, 28, 28), CPU))
    precise = build("lt-node", "mnist", seed=0).double()
    assert "float64" in str(unsupported_reason_fused_step(precise, torch.zeros(1, 1, 28, 28, dtype=torch.float64), CPU))
    fits = build("lt-node", "mnist", seed=0)
    reason = unsupported_reason_fused_step(fits, torch.zeros(1, 1, 28, 28), CPU)
    assert reason == "the device is cpu, and the fused kernels need CUDA"


def test_a_field_that_computes_something_else_is_not_fused():
    """A subclass, another eps, a hook: the kernels would silently compute the plain field instead."""

    class Damped(images.ConvField):
        def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return super().forward(t, h) - h

    x = torch.zeros(1, 1, 28, 28)
    model = build("lt-node", "mnist", seed=0)
    model.field = Damped()
    assert "Damped" in str(unsupported_reason_fused_step(model, x, CPU))
    model = build("lt-node", "mnist", seed=0)
    model.field.norm2.eps = 1e-3
    assert "eps" in str(unsupported_reason_fused_step(model, x, CPU))
    model = build("lt-node", "mnist", seed=0)
    model.field.register_forward_hook(lambda *_: None)
    assert "hook" in str(unsupported_reason_fused_step(model, x, CPU))
