"""One step, its stages and the norm of its embedded error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ode_problems import ADAPTIVE, F64, METHODS, Counted, swirl
from scipy.integrate import RK23, RK45
from scipy.integrate._ivp.rk import rk_step

from ltnode.errors import InputError
from ltnode.ode import TABLEAUS
from ltnode.ode.step import add_stages, error_norm, evaluate, take_step


@pytest.mark.parametrize(("method", "peer"), [("dopri5", RK45), ("bosh3", RK23)])
def test_a_step_and_its_error_equal_those_of_scipy(method: str, peer) -> None:
    """Reference: scipy's rk_step on the same tableau; float64 sums in another order, hence 1e-14."""
    tableau = TABLEAUS[method]
    y = torch.tensor([[0.3, -1.2, 2.0]], dtype=F64)

    def numpy_field(t: float, y: np.ndarray) -> np.ndarray:
        return swirl(torch.tensor(t, dtype=F64), torch.from_numpy(y)).numpy()

    stages = np.empty((peer.n_stages + 1, 3))
    y_new, _ = rk_step(numpy_field, 0.4, y[0].numpy(), numpy_field(0.4, y[0].numpy()), 0.3, peer.A, peer.B, peer.C, stages)
    step = take_step(swirl, tableau, 0.4, 0.3, y, None)
    np.testing.assert_allclose(step.y[0].numpy(), y_new, rtol=0, atol=1e-14)
    np.testing.assert_allclose(torch.stack(step.stages)[:, 0].numpy(), stages, rtol=0, atol=1e-13)
    scale = 1e-3 + 1e-2 * np.maximum(np.abs(y[0].numpy()), np.abs(y_new))
    expected = np.sqrt(np.mean((0.3 * stages.T @ peer.E / scale) ** 2))
    assert float(error_norm(tableau, 0.3, y, step, 1e-2, 1e-3, per_sample=False)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_float_a_tensor_and_a_per_sample_step_size_give_the_same_step(method: str) -> None:
    """The three forms are equivalent; float64 rounding only, hence 1e-14."""
    tableau = TABLEAUS[method]
    y = torch.randn(4, 3, dtype=F64)
    t, h = torch.tensor(0.2, dtype=F64), torch.tensor(0.5, dtype=F64)
    plain = take_step(swirl, tableau, 0.2, 0.5, y, None)
    for other in (take_step(swirl, tableau, t, h, y, None), take_step(swirl, tableau, t.expand(4), h.expand(4), y, None)):
        torch.testing.assert_close(other.y, plain.y, rtol=0, atol=1e-14)
        for a, b in zip(other.stages, plain.stages, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_the_last_stage_is_the_field_at_the_new_state(method: str) -> None:
    """FSAL reuses the last stage in the next step, which saves exactly one call and changes no value."""
    tableau = TABLEAUS[method]
    if not tableau.fsal:
        pytest.skip("Euler has no stage at the new state")
    y = torch.randn(4, 3, dtype=F64)
    first = take_step(swirl, tableau, 0.0, 0.3, y, None)
    torch.testing.assert_close(first.stages[-1], swirl(torch.tensor(0.3, dtype=F64), first.y), rtol=0, atol=1e-15)
    known, fresh = Counted(swirl), Counted(swirl)
    a = take_step(known, tableau, 0.3, 0.2, first.y, first.stages[-1])
    b = take_step(fresh, tableau, 0.3, 0.2, first.y, None)
    torch.testing.assert_close(a.y, b.y, rtol=0, atol=1e-15)
    assert (known.calls, fresh.calls) == (tableau.stages - 1, tableau.stages)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_error_norm_per_sample_and_over_the_batch(method: str) -> None:
    """The batch-wide norm is the RMS of the per-sample norms, and each of these equals the norm of the sample alone; 1e-12."""
    tableau = TABLEAUS[method]
    y = 3 * torch.randn(5, 2, 3, dtype=F64)
    step = take_step(swirl, tableau, 0.0, 0.4, y, None)
    each = error_norm(tableau, 0.4, y, step, 1e-3, 1e-4, per_sample=True)
    together = error_norm(tableau, 0.4, y, step, 1e-3, 1e-4, per_sample=False)
    assert each.shape == (5,)
    torch.testing.assert_close(together, each.square().mean().sqrt(), rtol=1e-12, atol=0)
    for b in range(5):
        alone = take_step(swirl, tableau, 0.0, 0.4, y[b : b + 1], None)
        norm = error_norm(tableau, 0.4, y[b : b + 1], alone, 1e-3, 1e-4, per_sample=False)
        torch.testing.assert_close(norm, each[b], rtol=1e-12, atol=0)


def test_error_norm_has_no_graph_and_the_step_has_one() -> None:
    y = torch.randn(2, 3, dtype=F64, requires_grad=True)
    step = take_step(swirl, TABLEAUS["dopri5"], 0.0, 0.4, y, None)
    assert step.y.requires_grad
    assert not error_norm(TABLEAUS["dopri5"], 0.4, y, step, 1e-3, 1e-4, per_sample=False).requires_grad


def test_error_norm_of_a_non_finite_step_is_not_below_one() -> None:
    """Stages with NaN or inf must never pass as a step that meets the tolerance."""
    y = torch.ones(2, 3)
    for bad in (torch.full_like(y, torch.nan), torch.full_like(y, torch.inf)):
        step = take_step(lambda t, y, bad=bad: torch.where(t > 0.5, bad, y), TABLEAUS["dopri5"], 0.0, 1.0, y, None)
        assert not bool(error_norm(TABLEAUS["dopri5"], 1.0, y, step, 1e-2, 1e-2, per_sample=False) < 1)


def test_methods_without_an_estimate_have_no_error_norm() -> None:
    y = torch.ones(1, 1)
    step = take_step(swirl, TABLEAUS["rk4"], 0.0, 0.1, y, None)
    with pytest.raises(InputError, match="no embedded error"):
        error_norm(TABLEAUS["rk4"], 0.1, y, step, 1e-2, 1e-2, per_sample=False)


@pytest.mark.parametrize("h", [0.1, torch.tensor(0.1), torch.tensor([0.1, 0.2])], ids=["float", "0-dim", "per-sample"])
def test_weights_of_zero_are_skipped(h) -> None:
    """A stage with weight zero may contain NaN; without nonzero weights the state is unchanged."""
    y, k, poison = torch.ones(2, 3), torch.ones(2, 3), torch.full((2, 3), torch.nan)
    moved = add_stages(y, h, (1.0, 0.0), (k, poison))
    torch.testing.assert_close(moved, y + torch.as_tensor(h).reshape(-1, 1))
    torch.testing.assert_close(add_stages(y, h, (0.0,), (poison,)), y)


@pytest.mark.parametrize("wrong", [lambda t, y: y[:, :1], lambda t, y: y.sum(), lambda t, y: y.unsqueeze(0), lambda t, y: None])
@pytest.mark.no_typecheck
def test_a_field_of_the_wrong_shape_is_named(wrong) -> None:
    """Broadcasting would otherwise hide a derivative of shape (B, 1) for a state of shape (B, C)."""
    with pytest.raises(InputError, match=r"the field returned .* for a state of shape \(2, 3\)"):
        evaluate(wrong, 0.0, torch.ones(2, 3))
