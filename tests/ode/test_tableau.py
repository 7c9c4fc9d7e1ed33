"""Tableaus are validated on construction and agree with scipy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from ode_problems import ADAPTIVE, METHODS
from scipy.integrate import RK23, RK45

from ltnode.errors import InputError
from ltnode.ode import TABLEAUS, ButcherTableau
from ltnode.ode.tableau import get_tableau


def _nudged(row: tuple[float, ...], index: int, by: float = 1e-6) -> tuple[float, ...]:
    values = list(row)
    values[index] += by
    return tuple(values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: {"c": _nudged(t.c, 2)}, "row 2 of a must sum"),
        (lambda t: {"a": (*t.a[:3], _nudged(t.a[3], 0), *t.a[4:])}, "row 3 of a must sum"),
        (lambda t: {"a": (*t.a[:3], t.a[3][:-1], *t.a[4:])}, "row 3 of a needs 3 entries"),
        (lambda t: {"b": _nudged(t.b, 0)}, "b must sum to 1"),
        (lambda t: {"b": _nudged(_nudged(t.b, 0), 2, -1e-6)}, "dense output must end"),
        (lambda t: {"dense": (*t.dense[:-1], _nudged(t.dense[-1], 1))}, "dense output must end"),
        (lambda t: {"error": _nudged(t.error, 0)}, "error must sum to 0"),
        (lambda t: {"error": t.error[:-1]}, "error needs one entry per stage"),
        (lambda t: {"error_order": 0}, "error_order must be at least 1"),
        (lambda t: {"b": t.b[:-1]}, "one entry per stage"),
        (
            lambda t: {"a": (*t.a[:-1], _nudged(_nudged(t.a[-1], 0), 2, -1e-6))},
            "the last stage must be the field at the new state",
        ),
    ],
)
def test_a_damaged_tableau_is_refused(damage, message) -> None:
    """An error of 1e-6 in any coefficient of Dopri5 violates a consistency condition that the message names."""
    tableau = TABLEAUS["dopri5"]
    with pytest.raises(InputError, match=message):
        dataclasses.replace(tableau, **damage(tableau))


def test_a_tableau_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TABLEAUS["dopri5"].order = 4


@pytest.mark.parametrize(("name", "peer"), [("dopri5", RK45), ("bosh3", RK23)])
def test_dense_output_and_coefficients_equal_those_of_scipy(name: str, peer) -> None:
    """Reference: scipy's matrices, which are written independently as decimals or fractions; equal up to their last digits."""
    tableau = TABLEAUS[name]
    np.testing.assert_allclose(np.array(tableau.dense), peer.P, rtol=0, atol=1e-13)
    np.testing.assert_allclose(tableau.b[:-1], peer.B, rtol=0, atol=1e-15)
    np.testing.assert_allclose(tableau.c[:-1], peer.C, rtol=0, atol=1e-15)
    np.testing.assert_allclose(np.abs(tableau.error), np.abs(peer.E), rtol=0, atol=1e-15)
    for row, expected in zip(tableau.a, peer.A, strict=False):
        np.testing.assert_allclose(row, expected[: len(row)], rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", METHODS)
def test_order_conditions_of_the_quadrature_trees(name: str) -> None:
    """sum b c^(q-1) = 1/q for q up to the order: a necessary condition, exact in theory, hence 1e-12."""
    tableau = TABLEAUS[name]
    b, c = np.array(tableau.b), np.array(tableau.c)
    for q in range(1, tableau.order + 1):
        assert math.isclose(float(b @ c ** (q - 1)), 1 / q, abs_tol=1e-12)
    if tableau.order < 5:  # the order is not higher than stated
        assert abs(float(b @ c**tableau.order) - 1 / (tableau.order + 1)) > 1e-4


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_embedded_solution_has_its_stated_order(name: str) -> None:
    """The embedded weights b - e satisfy the quadrature conditions up to error_order and violate the next one."""
    tableau = TABLEAUS[name]
    embedded, c = np.array(tableau.b) - np.array(tableau.error), np.array(tableau.c)
    for q in range(1, tableau.error_order + 1):
        assert math.isclose(float(embedded @ c ** (q - 1)), 1 / q, abs_tol=1e-12)
    assert abs(float(embedded @ c**tableau.error_order) - 1 / (tableau.error_order + 1)) > 1e-5


@pytest.mark.parametrize("name", ["dopri5", "tsit5", "bosh3", "rk4"])
def test_dense_output_has_the_slopes_of_the_field_at_both_ends(name: str) -> None:
    """The slope is stage 1 at theta = 0 and the last stage at theta = 1, so the trajectory is C1; exact in theory: 1e-11."""
    dense = np.array(TABLEAUS[name].dense)
    at_end = dense @ np.arange(1, dense.shape[1] + 1)
    np.testing.assert_allclose(dense[:, 0], np.eye(len(dense))[0], atol=1e-11)
    np.testing.assert_allclose(at_end, np.eye(len(dense))[-1], atol=1e-11)


def test_the_k2_slip_has_the_wrong_end_slope() -> None:
    """The dense output of the published code uses stage 2 as end slope; everything else is equal."""
    right, slip = (np.array(TABLEAUS[name].dense) for name in ("dopri5", "dopri5_aca"))
    at_end = slip @ np.arange(1, 5)
    np.testing.assert_allclose(at_end, np.eye(7)[1], atol=1e-11)
    theta = 0.5 ** np.arange(1, 5)
    np.testing.assert_allclose(right @ theta, slip @ theta, atol=1e-12)  # the mid-point is still right


@pytest.mark.parametrize("name", METHODS)
def test_evaluations_of_n_steps(name: str) -> None:
    """FSAL methods evaluate the first stage only once; zero steps need no evaluation."""
    tableau = TABLEAUS[name]
    new_per_step = {"dopri5": 6, "tsit5": 6, "bosh3": 3, "rk4": 4, "euler": 1}[name]
    once = 0 if name == "euler" else 1
    assert [tableau.evaluations(n) for n in (0, 1, 4)] == [0, once + new_per_step, once + 4 * new_per_step]


def test_a_tableau_passes_through_and_a_wrong_name_gets_the_nearest() -> None:
    tableau = TABLEAUS["tsit5"]
    assert get_tableau(tableau) is tableau
    with pytest.raises(InputError, match="Did you mean 'dopri5'"):
        get_tableau("dopri6")


def test_every_tableau_is_reachable_by_its_name() -> None:
    assert all(isinstance(t, ButcherTableau) and t.name == name for name, t in TABLEAUS.items())
    assert set(METHODS) <= set(TABLEAUS)
