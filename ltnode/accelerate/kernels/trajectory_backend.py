"""What the implementations of the fused trajectory have in common: their inputs, their results and their interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ltnode.device import Precision
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

Pair = tuple[Tensor, Tensor]
"""One tensor for each of the field's two convolutions."""


@dataclass(frozen=True)
class Problem:
    """Constants of a pass.

    Attributes:
        tableau: Runge-Kutta method.
        rtol: Relative tolerance of the error.
        atol: Absolute tolerance of the error.
        precision: Precision of the convolutions.
        groups: Number of groups of the norms.
        save: Whether to keep what the backward pass needs.
    """

    tableau: ButcherTableau
    rtol: float
    atol: float
    precision: Precision
    groups: int
    save: bool

    def evaluations(self, steps: int) -> int:
        """Number of stage evaluations J: the last stage of a step is the first of the next."""
        return steps * (self.tableau.stages - 1) + 1


@dataclass(frozen=True)
class ForwardResult:
    """Result of a forward pass.

    Attributes:
        stages: (J, B, H, W, C).
        squares: (n, B), sums over a sample of the squared error in units of the tolerance.
        active: Inputs of the two convolutions in all evaluations, in the layout that `TrajectoryBackend.convolution_gradients`
            of the same backend takes.
        saved: Further tensors for the backward pass.
    """

    stages: Tensor
    squares: Tensor
    active: Pair
    saved: tuple[Tensor, ...]


@dataclass(frozen=True)
class BackwardResult:
    """Result of a backward pass.

    Attributes:
        d_y0: (B, H, W, C).
        d_conv: Gradients of the outputs of the two convolutions, in the layout of `ForwardResult.active`.
        d_norms: (B, 6, C), gradients of scale and shift of the three norms in turn.
    """

    d_y0: Tensor
    d_conv: Pair
    d_norms: Tensor


@dataclass(frozen=True)
class ConvolutionGradients:
    """Gradients of the convolutions' parameters, summed over all evaluations.

    Attributes:
        weights: (C, C, 3, 3) each.
        biases: (C,) each.
        time_maps: (C, H, W) each.
    """

    weights: Pair
    biases: Pair
    time_maps: Pair


@runtime_checkable
class TrajectoryBackend(Protocol):
    """An implementation of the passes. ``field`` is `FieldTensors.flat`, detached."""

    def forward(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> ForwardResult:
        """Compute all stages of all steps from y0 (B, H, W, C)."""

    def backward(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> BackwardResult:
        """Propagate the gradients of all stages (J, B, H, W, C) back to y0."""

    def convolution_gradients(self, active: Pair, d_conv: Pair, weights: Pair, times: Tensor) -> ConvolutionGradients:
        """Compute the parameters' gradients from the results of both passes and the times (J,) of the evaluations."""


def torch_gradients(active: Pair, d_conv: Pair, weights: Pair, times: Float[Tensor, " J"]) -> ConvolutionGradients:
    """Compute `TrajectoryBackend.convolution_gradients` with torch, from (J, B, H, W, C) tensors: the reference."""
    factors = torch.stack([torch.ones_like(times), times])
    first, second = (_conv_gradients(*tensors, factors) for tensors in zip(active, d_conv, weights, strict=True))
    return ConvolutionGradients((first[0], second[0]), (first[1], second[1]), (first[2], second[2]))


def _conv_gradients(
    inputs: Float[Tensor, "J B H W C"], d_outputs: Float[Tensor, "J B H W C"], weight: Tensor, factors: Float[Tensor, "2 J"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weight, bias and time map; the factors are 1 and t of each evaluation."""
    x = inputs.flatten(0, 1).permute(0, 3, 1, 2)
    d = d_outputs.flatten(0, 1).permute(0, 3, 1, 2)
    d_weight = torch.ops.aten.convolution_backward(
        d, x, torch.empty_like(weight, dtype=x.dtype), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    per_evaluation = d_outputs.sum(dim=1, dtype=torch.float32)
    summed, by_time = (factors @ per_evaluation.flatten(1)).unflatten(1, per_evaluation.shape[1:])
    return d_weight.float(), summed.sum(dim=(0, 1)), by_time.permute(2, 0, 1)
