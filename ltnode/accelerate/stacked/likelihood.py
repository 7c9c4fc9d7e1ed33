"""Log-likelihoods of the outputs of stacked networks, and their gradients.

Outputs have the shape (K, S, C, B): networks, end-times, outputs of the head, rows. With the rows last, sums over the outputs are
several times faster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.accelerate.stacked.parameters import Array
from ltnode.objective import Gaussian

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class StackedLikelihood(ABC):
    """Log-likelihoods of one batch and then, from what the first call kept, their gradients."""

    @abstractmethod
    def log_prob(self, outputs: Array, y: NDArray[Any]) -> Array:
        """Return log p(y | output), (K, S, B), of outputs (K, S, C, B); changes the outputs."""

    @abstractmethod
    def gradients(self, weights: Array) -> Array:
        """Return the gradient (K, S, C, B) in the outputs of ``-sum weights log p`` with weights (K, S, B) or (K, S, 1).

        A learnt noise gets its gradient as well.
        """


class StackedLabels(StackedLikelihood):
    """The likelihood of labels (B,); the outputs are logits."""

    def log_prob(self, outputs: Array, y: NDArray[Any]) -> Array:
        """See `StackedLikelihood.log_prob`."""
        *many, _, batch = outputs.shape
        outputs -= outputs.max(axis=2, keepdims=True)
        self._places = y * batch + np.arange(batch)
        own = outputs.reshape(*many, -1)[:, :, self._places]
        self._p = np.exp(outputs, out=outputs)
        sums = self._p.sum(axis=2, keepdims=True)
        self._p /= sums
        log_p: Array = own - np.log(sums).reshape(own.shape)
        return log_p

    def gradients(self, weights: Array) -> Array:
        """Return ``weights (p - onehot)``."""
        self._p.reshape(*self._p.shape[:2], -1)[:, :, self._places] -= 1.0
        self._p *= weights[:, :, None]
        return self._p


class StackedGaussians(StackedLikelihood):
    """The Gaussian likelihood of targets (B,) or (B, targets); see `ltnode.objective.Gaussian`.

    Args:
        likelihood: That of one network, which describes all of them.
        log_std: Logarithms of the noise (K,) or (K, targets), a view of the stacked parameters.
        gradient: Their gradient.
    """

    def __init__(self, likelihood: Gaussian, log_std: Array, gradient: Array) -> None:
        self._targets, self._varies = likelihood.targets, likelihood.input_dependent
        self._smallest, self._limit = math.log(likelihood.smallest_std), likelihood.largest_log_ratio
        self._log_std, self._gradient = log_std.reshape(len(log_std), 1, -1, 1), gradient.reshape(len(gradient), -1)

    def log_prob(self, outputs: Array, y: NDArray[Any]) -> Array:
        """See `StackedLikelihood.log_prob`."""
        log_std = np.maximum(self._log_std, self._smallest)
        if self._varies:
            self._ratios = np.tanh(outputs[:, :, self._targets :] / self._limit)
            log_std = log_std + self._limit * self._ratios
        self._free = log_std > self._smallest
        log_std = np.maximum(log_std, self._smallest)
        self._precision = np.exp(-log_std)
        self._z = (y.reshape(len(y), -1).T - outputs[:, :, : self._targets]) * self._precision
        values: Array = (-0.5 * self._z * self._z - log_std - _HALF_LOG_TWO_PI).sum(axis=2)
        return values

    def gradients(self, weights: Array) -> Array:
        """See `StackedLikelihood.gradients`."""
        weights = weights[:, :, None]
        means: Array = -weights * self._z * self._precision
        noise = weights * (1 - self._z * self._z) * self._free
        # The parameter itself stops at the smallest noise, too.
        self._gradient[...] = noise.sum(axis=(1, 3)) * (self._log_std > self._smallest)[:, 0, :, 0]
        if not self._varies:
            return means
        return np.concatenate([means, noise * (1 - self._ratios * self._ratios)], axis=2)
