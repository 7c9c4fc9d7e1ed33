"""Gradient attacks on the averaged prediction, in the units of the model's input.

An attack sees the model as a function ``log_probs(x) -> (B, C)``: the log of the probabilities averaged over the
end-times, best computed as the log-mean-exp of log-softmaxes, whose gradient survives where a probability underflows.
Drawing fresh end-times inside that function makes the attack one on the expectation over T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.typing import Float, Int, Num, Tensor

PAPER_EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""The strengths of the paper's FGSM protocol, in units of the normalised input."""

LogProbs = Callable[[Tensor], Tensor]
"""(B, ...) inputs -> (B, C) log of the averaged probabilities, differentiable in the inputs."""

PerChannel = int | float | Sequence[float] | Tensor
"""One number, or one for each of the C channels (dimension 1 of the input)."""


class Attack(NamedTuple):
    """The result of an attack.

    Attributes:
        x: adversarial inputs, same shape and dtype as the clean ones.
        zero_gradient_share: share of exactly zero elements among all gradients that the attack used. An element without
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
        epsilon: strength in the units of ``x``, at least 0; for pixel units of normalised inputs pass ``epsilon / std``.
        low: smallest valid value, ``(0 - mean) / std`` of each channel for normalised images.
        high: largest valid value, ``(1 - mean) / std``.

    Returns:
        Adversarial inputs and the share of exactly zero gradients.
    """
    ball = _Ball.around(x, epsilon, low, high)
    sign = gradient_sign(log_probs_fn, x, y)
    return Attack(ball.clamp(x + ball.epsilon * sign), _zero_share(sign))


def gradient_sign(log_probs_fn: LogProbs, x: Float[Tensor, "B *rest"], y: Int[Tensor, " B"]) -> Float[Tensor, "B *rest"]:
    """Sign of the gradient of ``-log p_y`` in x, in {-1, 0, 1}: the direction of `fgsm` for every strength at once.

    The model's own gradients are left as they are.

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
        raise InputError("log_probs_fn does not depend differentiably on x: remove no_grad, detach or argmax from it.")
    if not bool(gradient.isfinite().all()):
        raise InputError(
            "the gradient of log_probs_fn holds nan or infinite values: average with logsumexp over log_softmax, so "
            "that no probability underflows to 0."
        )
    return gradient.sign()


def signed_step(
    x: Float[Tensor, "B *rest"], sign: Num[Tensor, "B *rest"], epsilon: PerChannel, low: PerChannel, high: PerChannel
) -> Float[Tensor, "B *rest"]:
    """``clamp(x + epsilon sign, low, high)``: the result of `fgsm` for one strength, from the sign of the gradient."""
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
    """Projected gradient descent in the L-infinity ball (Madry et al., 2018), the worst restart kept per example.

    Each restart begins at a uniform point of the ball (at ``x`` without ``random_start``) and repeats
    ``x' <- clamp(project(x' + step_size sign(grad -log p_y)))``. Of the end points of all restarts each example keeps a
    misclassified one before a correct one, and among those the one of smallest ``p_y``.

    Args:
        log_probs_fn: (B, ...) -> (B, C) log of the averaged probabilities; it is called ``restarts * (steps + 1)`` times.
        x: (B, C_in, ...) clean inputs.
        y: (B,) class indices.
        epsilon: radius in the units of ``x``, at least 0.
        steps: gradient steps per restart, at least 1.
        step_size: length of a step in the units of ``x``, at least 0.
        restarts: number of restarts, at least 1.
        low: smallest valid value per channel.
        high: largest valid value per channel.
        generator: source of the random starts; the global one of the device of ``x`` when None. A generator on the CPU
            gives the same starts on every device.
        random_start: begin inside the ball rather than at ``x``.

    Returns:
        Adversarial inputs and the share of exactly zero gradients over all steps and restarts.
    """
    ball = _Ball.around(x, epsilon, low, high)
    _check_labels(y, x)
    stride = _per_channel("step_size", step_size, x)
    if bool((stride < 0).any()):
        raise InputError(f"step_size must be at least 0, got {step_size}.")
    for name, value in (("steps", steps), ("restarts", restarts)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    worst = ball.clamp(x)
    worst_nll = x.new_full((x.shape[0],), -math.inf)
    worst_fooled = torch.zeros_like(worst_nll, dtype=torch.bool)
    zero_share = 0.0
    for _ in range(restarts):
        candidate = ball.clamp(x + ball.uniform(generator)) if random_start else x
        for _ in range(steps):
            step = gradient_sign(log_probs_fn, candidate, y)
            zero_share += _zero_share(step) / (steps * restarts)
            candidate = ball.clamp(x + ball.clip(candidate + stride * step - x))
        with torch.no_grad():
            log_probs = _check_log_probs(log_probs_fn(candidate), y)
        nll = -_chosen(log_probs, y)
        fooled = log_probs.amax(1) > -nll
        worse = torch.where(fooled == worst_fooled, nll > worst_nll, fooled)
        worst = torch.where(_columns(worse, x), candidate, worst)
        worst_nll = torch.where(worse, nll, worst_nll)
        worst_fooled = worst_fooled | fooled
    return Attack(worst, zero_share)


class _Ball(NamedTuple):
    """The valid inputs at most epsilon away; all fields broadcast against the inputs."""

    centre: Tensor
    epsilon: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, x: Tensor, epsilon: PerChannel, low: PerChannel, high: PerChannel) -> _Ball:
        if not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
            raise InputError(f"x must be floating point of shape (B, channels, ...), got {x.dtype} of shape {tuple(x.shape)}.")
        ball = cls(x, *(_per_channel(n, v, x) for n, v in (("epsilon", epsilon), ("low", low), ("high", high))))
        if bool((ball.epsilon < 0).any()):
            raise InputError(f"epsilon must be at least 0, got {epsilon}.")
        if not bool((ball.low < ball.high).all()):
            raise InputError(f"low must be smaller than high, got low {low} and high {high}.")
        return ball

    def clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x.detach(), self.low), self.high)

    def clip(self, delta: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(delta, -self.epsilon), self.epsilon)

    def uniform(self, generator: torch.Generator | None) -> Tensor:
        device = self.centre.device if generator is None else generator.device
        unit = torch.rand(self.centre.shape, generator=generator, device=device, dtype=self.centre.dtype)
        return (2 * unit.to(self.centre.device) - 1) * self.epsilon


def _per_channel(name: str, value: PerChannel, x: Tensor) -> Tensor:
    """``value`` in the dtype and on the device of ``x``, shaped to broadcast over dimension 1."""
    tensor = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if tensor.ndim > 1 or (tensor.ndim == 1 and tensor.numel() not in (1, x.shape[1])):
        raise InputError(f"{name} must be one number or one per channel ({x.shape[1]}), got shape {tuple(tensor.shape)}.")
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{name} must be finite, got {value}.")
    return tensor.reshape(-1, *[1] * (x.ndim - 2))


def _check_labels(y: Tensor, x: Tensor) -> None:
    if y.is_floating_point() or y.shape != x.shape[:1]:
        raise InputError(f"y must hold one integer per input, shape ({x.shape[0]},), got {y.dtype} of shape {tuple(y.shape)}.")


def _check_log_probs(log_probs: Tensor, y: Tensor) -> Tensor:
    if log_probs.ndim != 2 or log_probs.shape[0] != y.shape[0]:
        raise InputError(f"log_probs_fn must return ({y.shape[0]}, C), got shape {tuple(log_probs.shape)}.")
    if bool(((y < 0) | (y >= log_probs.shape[1])).any()):
        raise InputError(f"y must lie in 0..{log_probs.shape[1] - 1}, got {int(y.min())}..{int(y.max())}.")
    return log_probs


def _chosen(log_probs: Tensor, y: Tensor) -> Tensor:
    return log_probs.gather(1, y.to(device=log_probs.device, dtype=torch.int64)[:, None]).squeeze(1)


def _zero_share(step: Tensor) -> float:
    return (step == 0).double().mean().item()


def _columns(per_example: Tensor, x: Tensor) -> Tensor:
    return per_example.reshape(-1, *[1] * (x.ndim - 1))
