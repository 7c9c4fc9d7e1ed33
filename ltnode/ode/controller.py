"""Step-size control: the size of the first step, and of the next step after a trial."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ltnode.errors import InputError
from ltnode.ode.step import Field, Time, add_stages, evaluate
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor


@dataclass(frozen=True)
class Controller:
    """The elementary controller of the paper's solver.

    A step with error norm E is accepted when E < 1. The next step is ``h * clip(safety * E^(-1/(error_order+1)))`` with the
    factor in [1, max_factor] after an acceptance and in [min_factor, 1) after a rejection.
    """

    error_order: int
    safety: float = 0.9
    min_factor: float = 0.2
    max_factor: float = 10.0

    def accepts(self, norm: Tensor) -> Tensor:
        """Whether the trial step meets the tolerance, element-wise; False for NaN."""
        return norm < 1.0

    def factor(self, norm: Tensor) -> Tensor:
        """Factor between this step size and the next, element-wise in float64."""
        norm = norm.to(torch.float64)
        raw = self.safety * norm.clamp_min(1e-300).pow(-1.0 / (self.error_order + 1))
        grown = raw.clamp(1.0, self.max_factor)
        shrunk = raw.nan_to_num(nan=0.0).clamp(self.min_factor, self.safety)
        return torch.where(norm < 1.0, grown, shrunk)


def check_tolerances(rtol: float, atol: float) -> None:
    """Require positive, finite tolerances."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not (0.0 < value < float("inf")):
            raise InputError(f"{name} must be positive and finite, for example 1e-2 or 1e-6, not {value}")


def initial_step(
    f: Field, tableau: ButcherTableau, t: Time, y: Tensor, k: Tensor, rtol: float, atol: float, per_sample: bool
) -> Tensor:
    """Hairer's starting step in float64, 0-dim or per sample (B,), from k = f(t, y) and one more evaluation of the field.

    Reference: E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, section II.4.
    """
    scale = atol + rtol * y.double().abs()

    def rms(x: Tensor) -> Tensor:
        square = (x.double() / scale).square()
        return (square.reshape(x.shape[0], -1).mean(1) if per_sample else square.mean()).sqrt()

    d0, d1 = rms(y), rms(k)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), torch.full_like(d0, 1e-6), 0.01 * d0 / d1)
    k1 = evaluate(f, t + h0, add_stages(y, h0, (1.0,), (k,)))
    d2 = rms(k1 - k) / h0
    steep = torch.maximum(d1, d2)
    h1 = torch.where(steep <= 1e-15, torch.clamp(1e-3 * h0, min=1e-6), (0.01 / steep).pow(1.0 / (tableau.error_order + 1)))
    # If the field is not finite after the small step, h0 is the only estimate; the step control reduces it as needed.
    return torch.minimum(100 * h0, torch.where(torch.isfinite(steep), h1, h0))
