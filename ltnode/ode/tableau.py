"""Explicit Runge-Kutta methods as frozen data that is validated on construction.

A step from y at t with size h evaluates the stages
``k_i = f(t + c_i h, y + h sum_j a_ij k_j)`` and gives ``y_new = y + h sum_i b_i k_i``; the embedded error estimate is
``h sum_i e_i k_i``, and the dense output ``y(t + theta h) = y + h sum_i (sum_p D_ip theta^p) k_i`` with p = 1, 2, ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction as Q

import numpy as np

from ltnode.errors import InputError, unknown_name

Row = tuple[float, ...]


@dataclass(frozen=True)
class ButcherTableau:
    """Coefficients of one explicit Runge-Kutta method.

    Attributes:
        name: Name of the method.
        order: Order of the propagated solution.
        c: Stage times as fractions of the step.
        a: Strictly lower triangular stage coefficients; row i has i entries.
        b: Weights of the solution.
        error: Weights of the embedded error estimate, or None for a method without one (fixed grids only).
        error_order: Order of the embedded solution; the local error is O(h^(error_order + 1)).
        dense: Row i contains the coefficients of theta, theta^2, ... of stage i in the dense output.
        fsal: The last stage is the field at the new state and serves as the first stage of the next step.
    """

    name: str
    order: int
    c: Row
    a: tuple[Row, ...]
    b: Row
    dense: tuple[Row, ...]
    fsal: bool
    error: Row | None = None
    error_order: int = 0

    def __post_init__(self) -> None:
        def require(condition: bool, requirement: str) -> None:
            if not condition:
                raise InputError(f"tableau {self.name!r} is inconsistent: {requirement}")

        n = len(self.c)
        require(len(self.a) == n and len(self.b) == n and len(self.dense) == n, "c, a, b and dense need one entry per stage")
        for i, (ci, row) in enumerate(zip(self.c, self.a, strict=True)):
            require(len(row) == i, f"row {i} of a needs {i} entries")
            require(math.isclose(sum(row), ci, abs_tol=1e-12), f"row {i} of a must sum to c[{i}]")
        require(math.isclose(sum(self.b), 1.0, abs_tol=1e-12), "b must sum to 1")
        ends = [sum(row) for row in self.dense]
        require(np.allclose(ends, self.b, rtol=0, atol=1e-11), "the dense output must end at the new state")
        if self.error is not None:
            require(len(self.error) == n, "error needs one entry per stage")
            require(math.isclose(sum(self.error), 0.0, abs_tol=1e-12), "error must sum to 0")
            require(self.error_order >= 1, "error_order must be at least 1")
        if self.fsal:
            same_row = np.allclose(self.a[-1], self.b[:-1], rtol=0, atol=1e-14)
            require(self.c[-1] == 1.0 and self.b[-1] == 0.0 and same_row, "the last stage must be the field at the new state")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.c)

    @property
    def adaptive(self) -> bool:
        """Whether the method has an embedded error estimate."""
        return self.error is not None

    def evaluations(self, n_steps: int) -> int:
        """Number of field evaluations in n consecutive steps."""
        if n_steps == 0:
            return 0
        return 1 + (self.stages - 1) * n_steps if self.fsal else self.stages * n_steps


def _quartic_dense(b: Sequence[Q], mid: Sequence[Q], last: int) -> tuple[Row, ...]:
    """Quartic through y0, y_mid, y1 with end slopes k[0] and k[last], as stage polynomials."""
    rows = []
    for i, (bi, mi) in enumerate(zip(b, mid, strict=True)):
        f0, f1 = Q(i == 0), Q(i == last)
        rows.append(
            (
                float(f0),
                float(f1 - 4 * f0 - 5 * bi + 16 * mi),
                float(5 * f0 - 3 * f1 + 14 * bi - 32 * mi),
                float(2 * (f1 - f0) - 8 * bi + 16 * mi),
            )
        )
    return tuple(rows)


def _hermite_dense(b: Sequence[Q]) -> tuple[Row, ...]:
    """Cubic Hermite polynomial through y0 and y1 with the first and the last stage as end slopes, as stage polynomials."""
    rows = []
    for i, bi in enumerate(b):
        f0, f1 = Q(i == 0), Q(i == len(b) - 1)
        rows.append((float(f0), float(3 * bi - 2 * f0 - f1), float(-2 * bi + f0 + f1)))
    return tuple(rows)


def _from_fractions(
    name: str, order: int, a: Sequence[Sequence[Q]], dense: tuple[Row, ...], embedded: Sequence[Q] = ()
) -> ButcherTableau:
    """An FSAL method with weights b = (a[-1], 0), stage times c = row sums of a, and ``embedded`` weights of order - 1."""
    b = (*a[-1], Q(0))
    return ButcherTableau(
        name=name,
        order=order,
        c=tuple(float(sum(row)) for row in a),
        a=tuple(tuple(map(float, row)) for row in a),
        b=tuple(map(float, b)),
        error=tuple(float(p - q) for p, q in zip(b, embedded, strict=True)) if embedded else None,
        error_order=order - 1 if embedded else 0,
        dense=dense,
        fsal=True,
    )


_DP_A = (
    (),
    (Q(1, 5),),
    (Q(3, 40), Q(9, 40)),
    (Q(44, 45), Q(-56, 15), Q(32, 9)),
    (Q(19372, 6561), Q(-25360, 2187), Q(64448, 6561), Q(-212, 729)),
    (Q(9017, 3168), Q(-355, 33), Q(46732, 5247), Q(49, 176), Q(-5103, 18656)),
    (Q(35, 384), Q(0), Q(500, 1113), Q(125, 192), Q(-2187, 6784), Q(11, 84)),
)
_DP_B = (*_DP_A[-1], Q(0))
_DP_B4 = (Q(5179, 57600), Q(0), Q(7571, 16695), Q(393, 640), Q(-92097, 339200), Q(187, 2100), Q(1, 40))
# Weights of the state at the middle of the step: L. F. Shampine, Some practical Runge-Kutta formulas, Math. Comp. 46 (1986).
_DP_MID = (
    Q(6025192743, 2 * 30085553152),
    Q(0),
    Q(51252292925, 2 * 65400821598),
    Q(-2691868925, 2 * 45128329728),
    Q(187940372067, 2 * 1594534317056),
    Q(-1776094331, 2 * 19743644256),
    Q(11237099, 2 * 235043384),
)


# J. R. Dormand and P. J. Prince, A family of embedded Runge-Kutta formulae, J. Comp. Appl. Math. 6 (1980).
DOPRI5 = _from_fractions("dopri5", 5, _DP_A, _quartic_dense(_DP_B, _DP_MID, last=6), _DP_B4)
# The paper's published code uses the second stage as end slope of the dense output, whose local error is then O(h^2). This
# variant exists for comparisons with that code, and the order test checks that it detects the error.
DOPRI5_ACA = _from_fractions("dopri5_aca", 5, _DP_A, _quartic_dense(_DP_B, _DP_MID, last=1), _DP_B4)


# Ch. Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption,
# Computers and Mathematics with Applications 62 (2011).
_TS_LAST = (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774)
TSIT5 = ButcherTableau(
    name="tsit5",
    order=5,
    c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0),
    a=(
        (),
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
        _TS_LAST,
    ),
    b=(*_TS_LAST, 0.0),
    error=(
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        1 / 66,
    ),
    error_order=4,
    # The published interpolant, multiplied out into powers of theta.
    dense=(
        (0.9999999999999998, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        (0.0, 0.13169999999999998, -0.2234, 0.1017),
        (0.0, 3.930296236894751, -5.941033872131505, 2.490627285651253),
        (0.0, -12.411077166933676, 30.338188630282318, -16.548102889244902),
        (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928),
        (0.0, -27.896526289197286, 65.09189467479368, -34.87065786149661),
        (0.0, 1.5, -4.0, 2.5),
    ),
    fsal=True,
)

_BS_B = (Q(2, 9), Q(1, 3), Q(4, 9), Q(0))
_BS_B2 = (Q(7, 24), Q(1, 4), Q(1, 3), Q(1, 8))
# P. Bogacki and L. F. Shampine, A 3(2) pair of Runge-Kutta formulas, Appl. Math. Letters 2 (1989).
BOSH3 = _from_fractions("bosh3", 3, ((), (Q(1, 2),), (Q(0), Q(3, 4)), _BS_B[:-1]), _hermite_dense(_BS_B), _BS_B2)

# The classical method with the field at the new state as a fifth stage. The next step needs this stage anyway, and the dense
# output uses it as its end slope.
_RK4_B = (Q(1, 6), Q(1, 3), Q(1, 3), Q(1, 6), Q(0))
_RK4_A = ((), (Q(1, 2),), (Q(0), Q(1, 2)), (Q(0), Q(0), Q(1)), _RK4_B[:-1])
RK4 = _from_fractions("rk4", 4, _RK4_A, _hermite_dense(_RK4_B))

EULER = ButcherTableau(name="euler", order=1, c=(0.0,), a=((),), b=(1.0,), dense=((1.0,),), fsal=False)

TABLEAUS = {tableau.name: tableau for tableau in (DOPRI5, DOPRI5_ACA, TSIT5, BOSH3, RK4, EULER)}


def get_tableau(method: str | ButcherTableau) -> ButcherTableau:
    """Look up a method by its name; a tableau is returned unchanged."""
    if isinstance(method, ButcherTableau):
        return method
    try:
        return TABLEAUS[method]
    except (KeyError, TypeError):
        raise InputError(unknown_name("method", method, TABLEAUS)) from None
