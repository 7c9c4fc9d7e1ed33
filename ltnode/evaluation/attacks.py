"""Gradient attacks on the averaged prediction, in the units of the model's input.

An attack sees the model as a function ``log_probs(x) -> (B, C)``: the log of the probabilities averaged over the end-times. It is
best computed as the log-mean-exp of log-softmaxes, whose gradient survives where a probability underflows. A function that draws
new end-times in every call is attacked in expectation over T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ltnode.checks import checked_count
from ltnode.errors import InputError
from ltnode.typing import Float, Int, Num, Tensor

PAPER_EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""The strengths of the paper's FGSM protocol, in units of the normalised input."""

LogProbs = Callable[[Tensor], Tensor]
"""(B, ...) inputs -> (B, C) log of the averaged probabilities, differentiable with respect to the inputs."""

PerChannel = int | float | Sequence[float] | Tensor
"""One number, or one for each of the C channels (dimension 1 of the input)."""


class Attack(NamedTuple):
    """The result of an attack.

    Attributes:
        x: Adversarial inputs, with the shape and the dtype of the clean ones.
        zero_gradient_share: Share of exactly zero elements among all gradients that the attack used. An element without a
            gradient does not move: a large share means a masked gradient, not a robust model.
    """

    x: Float[Tensor, "B *rest"]
    zero_gradient_share: float


def fgsm(
    log_probs_fn: LogProbs,
    x: Float[Tensor, "B *rest"],
    y: Int[Tensor, " B"],
    epsilon: PerChannel,
    low: PerChannel,
    high: PerChannel,
) -> Attack:
    """Fast gradient sign method: ``clamp(x + epsilon sign(grad_x -log p_y), low, high)`` (Goodfellow et al., 2015).

    Args:
        log_probs_fn: (B, ...) -> (B, C) log of the averaged probabilities.
        x: (B, C_in, ...) clean inputs.
        y: (B,) class indices.
        epsilon: Strength in the units of ``x``, at least 0; for pixel units of normalised inputs pass ``epsilon / std``.
        low: Smallest valid value, ``(0 - mean) / std`` of each channel for normalised images.
        high: Largest valid value, ``(1 - mean) / std``.

    Returns:
        Adversarial inputs and the share of exactly zero gradients.
    """
    _Ball.around(x, epsilon, low, high)  # checks the arguments before the gradient is computed
    sign = gradient_sign(log_probs_fn, x, y)
    return Attack(signed_step(x, sign, epsilon, low, high), _zero_share(sign))


def gradient_sign(log_probs_fn: LogProbs, x: Float[Tensor, "B *rest"], y: Int[Tensor, " B"]) -> Float[Tensor, "B *rest"]:
    """Sign of the gradient of ``-log p_y`` with respect to x, in {-1, 0, 1}: the direction of `fgsm` for every strength.

    The gradients of the model's parameters are not changed.

    Args:
        log_probs_fn: (B, ...) -> (B, C) log of the averaged probabilities.
        x: (B, C_in, ...) clean inputs.
        y: (B,) class indices.
    """
    _check_labels(y, x)
    # Callers often evaluate under no_grad or inference_mode, where the gradient would silently be missing.
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        log_probs = _check_log_probs(log_probs_fn(leaf), y)
        # The sum over examples, not the mean: each gradient keeps its full size and does not underflow.
        loss = -_chosen(log_probs, y).sum()
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True) if loss.requires_grad else (None,)
    if gradient is None:
        raise InputError("log_probs_fn does not depend differentiably on x: remove no_grad, detach or argmax from it")
    if not bool(gradient.isfinite().all()):
        raise InputError(
            "the gradient of log_probs_fn contains NaN or infinite values: average with logsumexp over log_softmax, so that no "
            "probability underflows to 0"
        )
    return gradient.sign()


def signed_step(
    x: Float[Tensor, "B *rest"], sign: Num[Tensor, "B *rest"], epsilon: PerChannel, low: PerChannel, high: PerChannel
) -> Float[Tensor, "B *rest"]:
    """``clamp(x + epsilon sign, low, high)``: the result of `fgsm` for one strength, given the sign of the gradient."""
    ball = _Ball.around(x, epsilon, low, high)
    return ball.clamp(x + ball.epsilon * sign)


def pgd(
    log_probs_fn: LogProbs,
    x: Float[Tensor, "B *rest"],
    y: Int[Tensor, " B"],
    epsilon: PerChannel,
    steps: int,
    step_size: PerChannel,
    restarts: int,
    low: PerChannel,
    high: PerChannel,
    generator: torch.Generator | None = None,
    random_start: bool = True,
) -> Attack:
    """Projected gradient descent in the L-infinity ball (Madry et al., 2018); every example keeps its worst restart.

    Each restart begins at a uniform point of the ball (at ``x`` without ``random_start``) and repeats
    ``x' <- clamp(project(x' + step_size sign(grad -log p_y)))``. Among the end points of all restarts, an example keeps a
    misclassified one over a correctly classified one, and then the one with the smallest ``p_y``.

    Args:
        log_probs_fn: (B, ...) -> (B, C) log of the averaged probabilities; it is called ``restarts * (steps + 1)`` times.
        x: (B, C_in, ...) clean inputs.
        y: (B,) class indices.
        epsilon: Radius in the units of ``x``, at least 0.
        steps: Gradient steps per restart, at least 1.
        step_size: Length of a step in the units of ``x``, at least 0.
        restarts: Number of restarts, at least 1.
        low: Smallest valid value per channel.
        high: Largest valid value per channel.
        generator: Source of the random starts; None uses the global generator of the device of ``x``. A generator on the CPU
            gives the same starts on every device.
        random_start: Begin inside the ball rather than at ``x``.

    Returns:
        Adversarial inputs and the share of exactly zero gradients over all steps and restarts.
    """
    ball = _Ball.around(x, epsilon, low, high)
    _check_labels(y, x)
    stride = _per_channel("step_size", step_size, x, at_least_0=True)
    checked_count("steps", steps)
    checked_count("restarts", restarts)
    no_loss = x.new_full((x.shape[0],), -math.inf)
    worst = _EndPoints(ball.clamp(x), no_loss, no_loss > 0)
    zero_share = 0.0
    for _ in range(restarts):
        candidate = ball.clamp(x + ball.uniform(generator)) if random_start else x
        for _ in range(steps):
            sign = gradient_sign(log_probs_fn, candidate, y)
            zero_share += _zero_share(sign) / (steps * restarts)
            candidate = ball.clamp(x + ball.clip(candidate + stride * sign - x))
        worst = worst.or_worse(_EndPoints.of(log_probs_fn, candidate, y))
    return Attack(worst.x, zero_share)


class _EndPoints(NamedTuple):
    """End points of a restart: the inputs, their negative log-likelihood, and whether they are misclassified."""

    x: Tensor
    nll: Tensor
    fooled: Tensor

    @classmethod
    def of(cls, log_probs_fn: LogProbs, x: Tensor, y: Tensor) -> _EndPoints:
        with torch.no_grad():
            log_probs = _check_log_probs(log_probs_fn(x), y)
        nll = -_chosen(log_probs, y)
        return cls(x, nll, log_probs.amax(1) > -nll)

    def or_worse(self, other: _EndPoints) -> _EndPoints:
        """The worse of two end points of every example."""
        worse = torch.where(other.fooled == self.fooled, other.nll > self.nll, other.fooled)
        columns = worse.reshape(-1, *[1] * (self.x.ndim - 1))
        return _EndPoints(
            torch.where(columns, other.x, self.x), torch.where(worse, other.nll, self.nll), self.fooled | other.fooled
        )


class _Ball(NamedTuple):
    """The valid inputs at a distance of at most epsilon; all fields broadcast against the inputs."""

    centre: Tensor
    epsilon: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, x: Tensor, epsilon: PerChannel, low: PerChannel, high: PerChannel) -> _Ball:
        if not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
            raise InputError(f"x must be floating point of shape (B, channels, ...), not {x.dtype} of shape {tuple(x.shape)}")
        ball = cls(
            x,
            _per_channel("epsilon", epsilon, x, at_least_0=True),
            _per_channel("low", low, x),
            _per_channel("high", high, x),
        )
        if not bool((ball.low < ball.high).all()):
            raise InputError(f"low must be smaller than high, not low = {low} and high = {high}")
        return ball

    def clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x.detach(), self.low), self.high)

    def clip(self, delta: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(delta, -self.epsilon), self.epsilon)

    def uniform(self, generator: torch.Generator | None) -> Tensor:
        device = self.centre.device if generator is None else generator.device
        unit = torch.rand(self.centre.shape, generator=generator, device=device, dtype=self.centre.dtype)
        return (2 * unit.to(self.centre.device) - 1) * self.epsilon


def _per_channel(name: str, value: PerChannel, x: Tensor, at_least_0: bool = False) -> Tensor:
    """``value`` in the dtype and on the device of ``x``, shaped to broadcast over dimension 1."""
    tensor = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if tensor.ndim > 1 or (tensor.ndim == 1 and tensor.numel() not in (1, x.shape[1])):
        raise InputError(f"{name} must be one number or one per channel ({x.shape[1]}), not of shape {tuple(tensor.shape)}")
    if not bool(tensor.isfinite().all()) or (at_least_0 and bool((tensor < 0).any())):
        raise InputError(f"{name} must be finite{' and at least 0' if at_least_0 else ''}, not {value}")
    return tensor.reshape(-1, *[1] * (x.ndim - 2))


def _check_labels(y: Tensor, x: Tensor) -> None:
    if y.is_floating_point() or y.shape != x.shape[:1]:
        raise InputError(f"y must hold one integer per input, shape ({x.shape[0]},), not {y.dtype} of shape {tuple(y.shape)}")


def _check_log_probs(log_probs: Tensor, y: Tensor) -> Tensor:
    if log_probs.ndim != 2 or log_probs.shape[0] != y.shape[0]:
        raise InputError(f"log_probs_fn must return shape ({y.shape[0]}, C), not {tuple(log_probs.shape)}")
    if bool(((y < 0) | (y >= log_probs.shape[1])).any()):
        raise InputError(f"y must lie in 0..{log_probs.shape[1] - 1}, not in {int(y.min())}..{int(y.max())}")
    return log_probs


def _chosen(log_probs: Tensor, y: Tensor) -> Tensor:
    return log_probs.gather(1, y.to(device=log_probs.device, dtype=torch.int64)[:, None]).squeeze(1)


def _zero_share(sign: Tensor) -> float:
    return (sign == 0).double().mean().item()
