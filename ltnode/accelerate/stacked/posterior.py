"""Truncated Gamma posteriors of several networks: log-densities and KL divergences with their gradients.

The density of x = log t on the window is ``exp(alpha x - beta t - log Z)``, so that the derivatives of log Z are the moments
E[x] and -E[t], and those of the KL are covariances. All of them are sums over the nodes of one quadrature rule, in float64. An
integral does not depend on the position of its nodes; they follow the parameters only once these have moved by a twentieth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.accelerate.stacked.parameters import Array
from ltnode.endtime import GammaTime
from ltnode.endtime.gamma import log_time_panels, nodes_between

_MOVED = 0.05
_Array = NDArray[np.float64]


class StackedGammas:
    """The posteriors of K networks.

    Args:
        end_times: The end-times of the networks, with a common window and prior.
        alpha: Shapes (K,), a view of the stacked parameters.
        beta: Rates (K,).
    """

    def __init__(self, end_times: Sequence[GammaTime], alpha: Array, beta: Array) -> None:
        self._window = end_times[0].window
        self._now = alpha, beta
        self._prior = [float(value) for value in end_times[0].prior_distribution.in_float64]
        self._placed = np.zeros((2, len(alpha)))

    def values(self, times: _Array) -> tuple[_Array, _Array]:
        """Return log-densities (K, S) at times (S,), and divergences (K,); keeps what `gradients` needs."""
        now = np.array(self._now, dtype=np.float64)
        if (abs(now - self._placed) > _MOVED * self._placed).any():
            self._place(now)
        alpha, beta = now
        exponent = alpha * self._features[0] - beta * self._features[1] + self._log_weights
        largest = exponent.max(axis=0)
        density = np.exp(exponent - largest)
        mass = density.sum(axis=0)
        log_z = np.log(mass) + largest
        self._moments = np.einsum("fnk,nk->fk", self._features, density) / mass
        self._shifts = alpha - self._prior[0], beta - self._prior[1]
        kl = self._shifts[0] * self._moments[0] - self._shifts[1] * self._moments[1] - log_z + self._prior[2]
        self._t = times
        self._x = np.log(times)
        log_q = (alpha - 1)[:, None] * self._x - beta[:, None] * times - log_z[:, None]
        return log_q, np.maximum(kl, 0.0)

    def gradients(self, log_q: _Array, kl: float) -> tuple[_Array, _Array]:
        """Return the gradients in the shapes and the rates, given those in the log-densities and in every divergence."""
        x, t, xx, xt, tt = self._moments
        by_alpha, by_beta = self._shifts
        covariance = xt - x * t
        of_alpha = by_alpha * (xx - x * x) - by_beta * covariance
        of_beta = by_beta * (tt - t * t) - by_alpha * covariance
        total = log_q.sum(axis=1)
        return log_q @ self._x - total * x + kl * of_alpha, total * t - log_q @ self._t + kl * of_beta

    def _place(self, now: _Array) -> None:
        """Place the nodes of the quadrature for these shapes and rates."""
        alpha, beta = torch.from_numpy(now)
        edges = log_time_panels(alpha, beta, self._window)
        x, weights = (value.flatten(0, 1).numpy() for value in nodes_between(edges[:-1], edges[1:]))
        t = np.exp(x)
        self._features = np.stack([x, t, x * x, x * t, t * t])
        self._log_weights, self._placed = np.log(weights), now
