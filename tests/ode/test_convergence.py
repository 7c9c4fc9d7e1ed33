"""Order of every method and of its dense output, by regression of log error on log step size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ode_problems import F64, METHODS
from scipy.integrate import solve_ivp

from ltnode.ode import odesolve

_T = 4.0
_THETA = (0.11, 0.27, 0.41, 0.63, 0.79, 0.93)  # inside every step, where only the interpolant is at work


def _field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Logistic growth at a swinging rate: nonlinear, dependent on the time, and its fifth-order error terms do not cancel."""
    return torch.cos(t) * y - y * y


_REFERENCE = solve_ivp(
    lambda t, y: _field(torch.tensor(t, dtype=F64), torch.from_numpy(y)).numpy(),
    (0.0, _T),
    (1.0, 0.5),
    method="DOP853",
    rtol=2.5e-14,
    atol=1e-14,
    max_step=0.02,  # so that its own dense output (order 7) is exact to 1e-14 too
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

    A fitted slope of a clean power law over a factor 3 in the step is within .3 of the order (next term of the expansion).
    """
    assert _order(method, inside=False) == pytest.approx(_ORDERS[method], abs=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_the_dense_output_converges_with_the_order_of_the_method(method: str) -> None:
    """Error inside the steps, on the same grids.

    Each interpolant has a local error of one power more than the global error needs: Dopri5's and Tsit5's own quartics O(h^5),
    the cubic Hermite polynomials of Bosh3 and RK4 O(h^4), the chord of Euler O(h^2). So no order is lost between the edges.
    """
    assert _order(method, inside=True) == pytest.approx(_ORDERS[method], abs=0.3)


def test_the_k2_slip_loses_the_order_of_the_dense_output() -> None:
    """With stage 2 in place of stage 7 as end slope the error inside a step is O(h^2): the test above would fail on it."""
    assert _order("dopri5_aca", inside=False) == pytest.approx(5, abs=0.3)  # the steps themselves are those of Dopri5
    assert _order("dopri5_aca", inside=True) < 3


@pytest.mark.parametrize(
    ("method", "tolerances"), [("dopri5", (1e-4, 1e-6, 1e-8)), ("tsit5", (1e-4, 1e-6, 1e-8)), ("bosh3", (1e-3, 1e-4, 1e-5))]
)
def test_adaptive_error_falls_with_the_tolerance(method: str, tolerances: tuple[float, ...]) -> None:
    """Tolerance proportionality: the global error of adaptive steps stays within 20 times the tolerance at every one.

    Errors of several steps add up over a time of 4, with the field's own amplification; 20 leaves that room.
    """
    times = torch.linspace(0.05, _T, 23, dtype=F64)
    expected = _REFERENCE(times.numpy()).T
    y0 = torch.tensor([[1.0, 0.5]], dtype=F64)
    for tolerance in tolerances:
        states = odesolve(_field, y0, times, tolerance, tolerance, method).states[:, 0].numpy()
        assert np.abs(states - expected).max() < 20 * tolerance
