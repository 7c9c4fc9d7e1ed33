"""The field that a prediction prepares once is the field."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ltnode
from ltnode.accelerate.prepared_field import PreparedField, can_be_prepared
from ltnode.models import execution
from ltnode.models.images import ConvField


def field_and_state(width: int = 32, size: int = 5) -> tuple[ConvField, torch.Tensor]:
    torch.manual_seed(0)
    field = ConvField(width)
    for parameter in field.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return field, torch.randn(3, width, size, size)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_equals_the_field_at_every_time(dtype: torch.dtype):
    """Sums of 288 products, in another order: the tolerance is 50 roundings. Also for other image sizes, and for one input."""
    field, h = field_and_state()
    field, h = field.to(dtype), h.to(dtype)
    with torch.no_grad():
        prepared = PreparedField(field)
        for state in (h, h[:, :, :4, :3], h[:1], h):
            for t in (0.0, 0.7, 3.0):
                time = torch.tensor(t, dtype=dtype)
                torch.testing.assert_close(prepared(time, state), field(time, state), rtol=0, atol=50 * torch.finfo(dtype).eps)
        times = torch.tensor([0.0, 1.0, 2.0], dtype=dtype)
        assert torch.equal(prepared(times, h), field(times, h))


def test_predictions_prepare_the_field_and_notice_new_weights(monkeypatch: pytest.MonkeyPatch):
    """A prediction agrees with that of the reference to rounding, before and after the weights have changed."""
    model = ltnode.build("lt-node", ltnode.InputSpec((1, 20, 20), "classification", 3), seed=0, width=32).eval()
    x = torch.randn(2, 1, 20, 20)
    for _ in range(2):
        with execution.using(execution.REFERENCE):
            expected = model.predict(x).probs
        with monkeypatch.context() as patch:
            patch.setattr(ConvField, "forward", lambda *_: pytest.fail("the layers ran"))
            probs = model.predict(x).probs
        # The solve amplifies rounding by less than 100.
        torch.testing.assert_close(probs, expected, rtol=0, atol=1e-5)
        for parameter in model.field.parameters():
            parameter.data.mul_(1.1)


class Other(nn.Module):
    """A field of one's own."""


def test_what_is_not_prepared():
    """Gradients, hooks, other layers and dtypes, and fields of one's own run as they are written."""
    field, h = field_and_state()
    assert not can_be_prepared(field, h)
    with torch.no_grad():
        assert can_be_prepared(field, h)
        assert not can_be_prepared(Other(), h)
        assert not can_be_prepared(field, h.double())
        hook = field.conv1.register_forward_hook(lambda *_: None)
        assert not can_be_prepared(field, h)
        hook.remove()
        nn.utils.parametrizations.weight_norm(field.conv1.conv)
        assert not can_be_prepared(field, h)


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
def test_gradients_of_predictions_are_those_of_the_layers(name: str):
    """``log_probs`` has a graph to its input, which a prepared field does not have: the layers run, bit for bit."""
    model = ltnode.build(name, ltnode.InputSpec((1, 20, 20), "classification", 3), seed=0, width=32).eval()
    x = torch.randn(2, 1, 20, 20, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.log_probs(x)[:, 0].sum(), x)
    with execution.using(execution.REFERENCE):
        (expected,) = torch.autograd.grad(model.log_probs(x)[:, 0].sum(), x)
    assert torch.equal(gradient, expected)
