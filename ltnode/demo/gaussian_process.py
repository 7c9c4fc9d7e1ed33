"""The yardstick of the demo: a Gaussian process with an RBF kernel on the input itself, chosen by its evidence.

``y = f(x) + noise`` with ``f ~ GP(0, a exp(-(x - x')^2 / (2 l^2)))``; length scale, noise and amplitude maximise the evidence.
On one-dimensional data this is hard to beat, which makes it a fair measure of how wide a band has to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ltnode.typing import Float, Tensor

_LENGTHS = torch.logspace(-1.3, 1.0, 70, dtype=torch.float64)
_NOISES = torch.logspace(-5.0, 0.0, 101, dtype=torch.float64)
"""Variances of the noise relative to the amplitude."""


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A fitted process.

    Attributes:
        x: Training inputs.
        y: Their targets.
        length: Length scale.
        amplitude: Prior variance of the function.
        noise: Variance of the noise.
    """

    x: Float[Tensor, "N 1"]
    y: Float[Tensor, " N"]
    length: float
    amplitude: float
    noise: float

    def predict(self, x: Float[Tensor, "B 1"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return mean and standard deviation, noise included, in the dtype of the inputs."""
        inner = self.amplitude * _kernel(self.x, self.x, self.length) + self.noise * torch.eye(len(self.x)).to(self.x)
        cross = self.amplitude * _kernel(x.double(), self.x, self.length)
        factor = torch.linalg.cholesky(inner)
        mean = cross @ torch.cholesky_solve(self.y[:, None], factor)[:, 0]
        explained = torch.linalg.solve_triangular(factor, cross.T, upper=False).square().sum(dim=0)
        variance = (self.amplitude - explained).clamp_min(0.0) + self.noise
        return mean.to(x.dtype), variance.sqrt().to(x.dtype)


def fit_gaussian_process(x: Float[Tensor, "N 1"], y: Float[Tensor, " N"]) -> GaussianProcess:
    """Choose length scale and noise on a grid; the best amplitude for them is known in closed form."""
    x, y = x.double(), y.double()
    best = (-torch.inf, 1.0, 1.0, 1.0)
    for length in _LENGTHS.tolist():
        values, vectors = torch.linalg.eigh(_kernel(x, x, length))
        spectrum = values.clamp_min(0.0) + _NOISES[:, None]
        amplitudes = ((vectors.T @ y).square() / spectrum).mean(dim=1)
        log_evidence = -0.5 * (len(y) * amplitudes.log() + spectrum.log().sum(dim=1))
        row = int(log_evidence.argmax())
        best = max(best, (float(log_evidence[row]), length, float(amplitudes[row]), float(amplitudes[row] * _NOISES[row])))
    return GaussianProcess(x, y, *best[1:])


def _kernel(a: Float[Tensor, "n 1"], b: Float[Tensor, "m 1"], length: float) -> Float[Tensor, "n m"]:
    return torch.exp(-0.5 * (a - b.T).square() / length**2)
