"""The Euler-Maruyama method for stochastic differential equations: strong order 1/2, weak order 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from ltnode.errors import InputError
from ltnode.ode.step import Field, evaluate, time_on
from ltnode.typing import Float, Tensor


def euler_maruyama(
    drift: Field, diffusion: Field | Tensor, y0: Tensor, edges: Sequence[float], noise: Float[Tensor, "n *noise"]
) -> Tensor:
    """State at the last edge of the Ito equation ``dy = f(t, y) dt + g(t, y) dW`` with diagonal noise.

    One step from t_n to t_(n+1) = t_n + h is ``y <- y + h f(t_n, y) + sqrt(h) g(t_n, y) z_n``. Without diffusion this is the
    Euler method. The result is differentiable in y0, in the noise and in every tensor that f and g use.

    Args:
        drift: ``f(t, y) -> dy/dt`` with the shape of y; t is 0-dim.
        diffusion: ``g(t, y)`` or a constant, broadcastable to the state.
        y0: State at the first edge.
        edges: n + 1 increasing times.
        noise: Standard normal z_n, (n, ...). Noise and state broadcast against each other: y0 of shape (1, B, D) and noise of
            shape (n, S, 1, D) give S paths per sample, which share the first evaluation of the drift.
    """
    widths = [right - left for left, right in itertools.pairwise(edges)]
    if not widths or not all(0.0 < h < math.inf for h in widths):
        raise InputError(f"edges must be at least two finite, increasing times, not {list(edges)}")
    if noise.shape[0] != len(widths):
        raise InputError(f"noise must have one row for each of the {len(widths)} steps, not {noise.shape[0]}")
    y = y0
    for left, h, z in zip(edges, widths, noise, strict=False):
        scale = diffusion if isinstance(diffusion, torch.Tensor) else diffusion(time_on(y, left), y)
        y = torch.add(y, evaluate(drift, left, y), alpha=h) + math.sqrt(h) * scale * z
    return y
