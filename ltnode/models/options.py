"""Options of a latent-time model: how it solves its ODE, and what training minimises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ltnode.checks import checked_count
from ltnode.errors import InputError, unknown_name
from ltnode.objective import Weighting, resolve_kl_weight
from ltnode.ode import TABLEAUS


@dataclass(frozen=True)
class SolverOptions:
    """How a model solves its ODE.

    Attributes:
        method: An adaptive Runge-Kutta method.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        training: ``"kept"``: the error-balanced training grid of earlier steps, checked on every pass; ``"adaptive"``: the
            literal two-phase solve of the paper; ``"fixed"``: equal steps over the window without an error check, so that a
            gradient does not depend on how processes share a batch.
        fixed_steps: Number of equal steps.
        recompute: Save memory in the backward pass at the cost of time.
        clip_last: End at the largest end-time, unlike the paper's code.
        max_steps: Largest number of trial steps.
    """

    method: str = "dopri5"
    rtol: float = 1e-2
    atol: float = 1e-2
    training: Literal["kept", "adaptive", "fixed"] = "kept"
    fixed_steps: int = 8
    recompute: bool = False
    clip_last: bool = True
    max_steps: int = 5000

    def __post_init__(self) -> None:
        adaptive = [name for name, tableau in TABLEAUS.items() if tableau.adaptive]
        if self.method not in adaptive:
            raise InputError(unknown_name("adaptive method", self.method, adaptive))
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0.0 < value < math.inf:
                raise InputError(f"{name} must be a positive, finite number such as 1e-2 or 1e-6, not {value!r}")
        if self.training not in ("kept", "adaptive", "fixed"):
            raise InputError(unknown_name("way to solve in training", self.training, ("kept", "adaptive", "fixed")))
        checked_count("fixed_steps", self.fixed_steps)
        checked_count("max_steps", self.max_steps)


@dataclass(frozen=True)
class ObjectiveOptions:
    """What training minimises.

    Attributes:
        weighting: Estimator of the expectation under q, see `ltnode.objective.Weighting`.
        kl_weight: Weight of the KL per data point, or ``"elbo"`` for the literal bound.
        samples: Number of end-times per training step (per input where each has its own T).
        scheme: ``"grid"``: one draw per equal part of the window; ``"iid"``: independent draws, as in the paper's code.
    """

    weighting: str = "normalised"
    kl_weight: float | str = 0.1
    samples: int = 10
    scheme: Literal["iid", "grid"] = "grid"

    def __post_init__(self) -> None:
        Weighting.parse(self.weighting)
        if self.kl_weight != "elbo":
            resolve_kl_weight(self.kl_weight, 1, True)
        checked_count("samples", self.samples)
        if self.scheme not in ("iid", "grid"):
            raise InputError(unknown_name("scheme of training times", self.scheme, ("iid", "grid")))
