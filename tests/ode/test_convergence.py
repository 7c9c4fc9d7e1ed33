"""Convergence order of every method and of its dense output, by regression of log error on log step size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ode_problems import F64, METHODS
from scipy.integrate import solve_ivp

from ltnode.ode import odesolve

_T = 4.0
_THETA = (0.11, 0.27, 0.41, 0.63, 0.79, 0.93)  # inside every step, where the error of the interpolant dominates


def _field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Logistic growth with an oscillating rate: nonlinear, time-dependent, with fifth-order error terms that do not cancel."""
    return torch.cos(t) * y - y * y


_REFERENCE = solve_ivp(
    lambda t, y: _field(torch.tensor(t, dtype=F64), torch.from_numpy(y)).numpy(),
    (0.0, _T),
    (1.0, 0.5),
    method="DOP853",
    rtol=2.5e-14,
    atol=1e-14,
    max_step=0.02,  # so that the dense output of the reference (order 7) is also exact to 1e-14
    dense_output=True,
).sol


def _error(method: str, n: int, inside: bool) -> float:
    edges = np.linspace(0.0, _T, n + 1)
    times = np.concatenate([edges[:-1] + theta * np.diff(edges) for theta in _THETA]) if inside else edges[1:]
    y0 = torch.tensor([[1.0, 0.5]], dtype=F64)
    sol = odesolve(_field, y0, torch.from_numpy(times), method=method, grid=edges.tolist())
    return float(np.abs(sol.states[:, 0].numpy() - _REFERENCE(times).T).max())


def _order(method: str, inside: bool) -> float:
    # Small enough to be in the asymptotic range, large enough to stay above rounding (1e-14).
    n = np.array((45, 64, 90, 128))
    errors = np.array([_error(method, int(m), inside) for m in n])
    assert errors.min() > 3e-13
    return float(-np.polyfit(np.log(n), np.log(errors), 1)[0])


_ORDERS = {"dopri5": 5, "tsit5": 5, "bosh3": 3, "rk4": 4, "euler": 1}


@pytest.mark.parametrize("method", METHODS)
def test_the_steps_converge_with_the_order_of_the_method(method: str) -> None:
    """Global error at the edges of a fixed grid against DOP853 at 1e-14.

    Over a factor of 3 in the step size the fitted slope is within 0.3 of the order; the next term of the expansion explains that.
    """
    assert _order(method, inside=False) == pytest.approx(_ORDERS[method], abs=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_the_dense_output_converges_with_the_order_of_the_method(method: str) -> None:
    """Error inside the steps, on the same grids.

    No order is lost between the edges, because the local errors of the interpolants are O(h^5) for the quartics of Dopri5 and
    Tsit5, O(h^4) for the cubic Hermite polynomials of Bosh3 and RK4, and O(h^2) for the chord of Euler.
    """
    assert _order(method, inside=True) == pytest.approx(_ORDERS[method], abs=0.3)


def test_the_k2_slip_loses_the_order_of_the_dense_output() -> None:
    """With stage 2 instead of stage 7 as end slope the error inside a step is O(h^2), which the test above would detect."""
    assert _order("dopri5_aca", inside=False) == pytest.approx(5, abs=0.3)  # the steps themselves are those of Dopri5
    assert _order("dopri5_aca", inside=True) < 3


@pytest.mark.parametrize(
    ("method", "tolerances"), [("dopri5", (1e-4, 1e-6, 1e-8)), ("tsit5", (1e-4, 1e-6, 1e-8)), ("bosh3", (1e-3, 1e-4, 1e-5))]
)
def test_adaptive_error_falls_with_the_tolerance(method: str, tolerances: tuple[float, ...]) -> None:
    """Tolerance proportionality: the global error of adaptive steps stays below 20 times the tolerance.

    The factor of 20 allows for the sum of the errors of several steps and for their amplification by the field.
    """
    times = torch.linspace(0.05, _T, 23, dtype=F64)
    expected = _REFERENCE(times.numpy()).T
    y0 = torch.tensor([[1.0, 0.5]], dtype=F64)
    for tolerance in tolerances:
        states = odesolve(_field, y0, times, tolerance, tolerance, method).states[:, 0].numpy()
        assert np.abs(states - expected).max() < 20 * tolerance
