"""Autograd around the fused trajectory of the convolutional field.

``K, norms = conv_trajectory(y0, field_tensors, starts, lengths, ...)`` gives the stages of all steps, from which the states at
any end-times follow as a matrix product with `ltnode.ode.dense.dense_weights`. The reference is `ltnode.ode.replay` with
`ltnode.models.images.ConvField`; the tests compare states, error norms and all gradients with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.ode.tableau import EULER, ButcherTableau
from ltnode.typing import Float, Tensor

Precision = Literal["fp32", "tf32", "bf16"]
EPS = 1e-5
"""Of the norms in the kernels."""
ThreeNorms = tuple[nn.GroupNorm, nn.GroupNorm, nn.GroupNorm]


@dataclass(frozen=True)
class FieldTensors:
    """What the field consists of, as tensors with their graph.

    Attributes:
        weights: Two (C, C, 3, 3) kernels of the state's channels.
        biases: Two (C,).
        time_maps: Two (C, H, W): the convolution of a plane of ones with the time channel's kernel.
        scales: Three (C,), of the norms.
        shifts: Three (C,), of the norms.
        groups: Groups of the norms.
    """

    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor, Tensor]
    time_maps: tuple[Tensor, Tensor]
    scales: tuple[Tensor, Tensor, Tensor]
    shifts: tuple[Tensor, Tensor, Tensor]
    groups: int

    @classmethod
    def of(cls, convs: tuple[nn.Conv2d, nn.Conv2d], norms: ThreeNorms, side: int) -> FieldTensors:
        """Of layers: two convolutions of [t, h] with a bias, and the norms before, between and after them."""
        (w1, w2), (b1, b2) = (conv.weight for conv in convs), (conv.bias for conv in convs)
        assert b1 is not None and b2 is not None
        return cls(
            weights=(w1[:, 1:], w2[:, 1:]),
            biases=(b1, b2),
            time_maps=(time_map(w1[:, :1], side), time_map(w2[:, :1], side)),
            scales=(norms[0].weight, norms[1].weight, norms[2].weight),
            shifts=(norms[0].bias, norms[1].bias, norms[2].bias),
            groups=norms[0].num_groups,
        )

    def flat(self) -> tuple[Tensor, ...]:
        """All tensors in the order of the autograd function."""
        return (*self.weights, *self.biases, *self.time_maps, *self.scales, *self.shifts)


@cache
def tables(tableau: ButcherTableau, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients a (square), c, error (zero without an estimate) on the device.

    They are kept, since a captured program must not copy from the host.
    """
    n = tableau.stages
    a = torch.zeros(n, n)
    for i, row in enumerate(tableau.a):
        a[i, : len(row)] = torch.tensor(row)
    return a.to(device), torch.tensor(tableau.c).to(device), torch.tensor(tableau.error or (0.0,) * n).to(device)


@dataclass(frozen=True)
class Problem:
    """What a pass needs beside its tensors.

    Attributes:
        tableau: The Runge-Kutta method.
        rtol: Relative tolerance of the error.
        atol: Absolute tolerance of the error.
        precision: Of the convolutions.
        groups: Of the norms.
        save: Keep what the backward pass needs.
    """

    tableau: ButcherTableau
    rtol: float
    atol: float
    precision: Precision
    groups: int
    save: bool


@dataclass(frozen=True)
class Swept:
    """Result of a forward pass.

    Attributes:
        stages: (J, B, H, W, C).
        squares: (n, B): sums over a sample of the squared error in units of the tolerance.
        active: Inputs of the two convolutions in all evaluations, as `Kernels.convolution_gradients` of the same kernels takes
            them: (J, B, H, W, C) each in the storage type, or in another order.
        saved: Further tensors for the backward pass.
    """

    stages: Tensor
    squares: Tensor
    active: tuple[Tensor, Tensor]
    saved: tuple[Tensor, ...]


@dataclass(frozen=True)
class SweptBack:
    """Result of a backward pass.

    Attributes:
        d_y0: (B, H, W, C).
        d_conv: Gradients of the two convolutions' outputs, like ``Swept.active``.
        d_norms: (B, 6, C): of scale and shift of the three norms in turn.
    """

    d_y0: Tensor
    d_conv: tuple[Tensor, Tensor]
    d_norms: Tensor


Pair = tuple[Tensor, Tensor]
"""Of the two convolutions."""


@dataclass(frozen=True)
class ConvolutionGradients:
    """Each over all evaluations.

    Attributes:
        weights: (C, C, 3, 3).
        biases: (C,).
        time_maps: (C, H, W).
    """

    weights: Pair
    biases: Pair
    time_maps: Pair


@runtime_checkable
class Kernels(Protocol):
    """The passes of a trajectory; ``field`` is `FieldTensors.flat` without its graph."""

    def sweep(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> Swept:
        """All steps from y0 (B, H, W, C)."""

    def sweep_back(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> SweptBack:
        """From the gradients of all stages (J, B, H, W, C)."""

    def convolution_gradients(self, active: Pair, d_conv: Pair, weights: Pair, times: Tensor) -> ConvolutionGradients:
        """Gradients of kernels, biases and time maps from `Swept.active` and `SweptBack.d_conv` at the evaluations' times."""


def choose_kernels(y0: Tensor, tensors: FieldTensors, tableau: ButcherTableau, precision: Precision) -> Kernels:
    """CUDA's tensor-core kernels where they apply (bfloat16, the paper's width), else those in Triton."""
    from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda

    if conv_trajectory_cuda.why_not(y0, tensors.groups, tableau, precision) is None:
        return conv_trajectory_cuda.CudaTrajectory(conv_trajectory_cuda.has_warpgroups(y0.device))
    from ltnode.accelerate.kernels.triton.conv_trajectory import TritonTrajectory

    return TritonTrajectory()


def conv_trajectory(
    y0: Float[Tensor, "B C H W"],
    tensors: FieldTensors,
    starts: Float[Tensor, " n"],
    lengths: Float[Tensor, " n"],
    tableau: ButcherTableau,
    rtol: float,
    atol: float,
    precision: Precision,
) -> tuple[Float[Tensor, "J B C H W"], Float[Tensor, "n B"]]:
    """Stages of all steps and the squared error of every step.

    Args:
        y0: Initial state; square images.
        tensors: The field.
        starts: Left edges, on the device.
        lengths: Step sizes, on the device.
        tableau: An adaptive method whose last stage is the field at the new state; or one with a single stage, and one step.
        rtol: Relative tolerance of the error.
        atol: Absolute tolerance of the error.
        precision: Of the convolutions; states, norms and Runge-Kutta sums are float32.

    Returns:
        Stages (J, B, C, H, W) with J = n (stages - 1) + 1, and per step and sample the mean square of the error in units of the
        tolerance: ``sqrt(mean over the batch) < 1`` meets it.
    """
    problem = Problem(tableau, rtol, atol, precision, tensors.groups, save=torch.is_grad_enabled())
    kernels = choose_kernels(y0, tensors, tableau, precision)
    return _ConvTrajectory.apply(y0, starts, lengths, problem, kernels, *tensors.flat())


def field_evaluation(
    t: Float[Tensor, ""], y: Float[Tensor, "B C H W"], tensors: FieldTensors, precision: Precision
) -> Float[Tensor, "B C H W"]:
    """The field at one time and state in float32: the only stage of one step of Euler's method."""
    start = t.detach().reshape(1).float()
    stages, _ = conv_trajectory(y.float(), tensors, start, torch.ones_like(start), EULER, 1.0, 1.0, precision)
    return stages[0]


class _ConvTrajectory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y0: Tensor, starts: Tensor, lengths: Tensor, problem: Problem, kernels: Kernels, *flat: Tensor
    ) -> tuple[Tensor, Tensor]:
        field = [x.detach() for x in flat]
        swept = kernels.sweep(y0.detach().permute(0, 2, 3, 1).contiguous(), field, starts, lengths, problem)
        ctx.save_for_backward(starts, lengths, *swept.active, *field, *swept.saved)
        ctx.problem, ctx.kernels = problem, kernels
        return swept.stages.permute(0, 1, 4, 2, 3), swept.squares / y0[0].numel()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_stages: Tensor, _d_squares: Tensor) -> tuple[Tensor | None, ...]:
        starts, lengths, active1, active2, *rest = ctx.saved_tensors
        field, saved = rest[:12], rest[12:]
        rows = d_stages.permute(0, 1, 3, 4, 2).contiguous()
        back = ctx.kernels.sweep_back(rows, field, lengths, ctx.problem, saved)
        d_y0 = back.d_y0.permute(0, 3, 1, 2)
        if not any(ctx.needs_input_grad[-len(field) :]):
            return (d_y0, *[None] * (len(ctx.needs_input_grad) - 1))
        times = _stage_times(starts, lengths, tables(ctx.problem.tableau, rows.device)[1])
        d = ctx.kernels.convolution_gradients((active1, active2), back.d_conv, (field[0], field[1]), times)
        d_g1, d_b1, d_g2, d_b2, d_g3, d_b3 = back.d_norms.sum(dim=0)
        d_flat = (*d.weights, *d.biases, *d.time_maps, d_g1, d_g2, d_g3, d_b1, d_b2, d_b3)
        return (d_y0, None, None, None, None, *d_flat)


def torch_gradients(active: Pair, d_conv: Pair, weights: Pair, times: Float[Tensor, " J"]) -> ConvolutionGradients:
    """`Kernels.convolution_gradients` in operations of torch: the reference."""
    factors = torch.stack([torch.ones_like(times), times])
    first, second = (_conv_gradients(*given, factors) for given in zip(active, d_conv, weights, strict=True))
    return ConvolutionGradients((first[0], second[0]), (first[1], second[1]), (first[2], second[2]))


def _conv_gradients(
    inputs: Float[Tensor, "J B H W C"], d_outputs: Float[Tensor, "J B H W C"], weight: Tensor, factors: Float[Tensor, "2 J"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of kernel, bias and time map, each over all evaluations in one call; factors are 1 and t of each."""
    x = inputs.flatten(0, 1).permute(0, 3, 1, 2)
    d = d_outputs.flatten(0, 1).permute(0, 3, 1, 2)
    d_weight = torch.ops.aten.convolution_backward(
        d, x, torch.empty_like(weight, dtype=x.dtype), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    per_evaluation = d_outputs.sum(dim=1, dtype=torch.float32)
    summed, by_time = (factors @ per_evaluation.flatten(1)).unflatten(1, per_evaluation.shape[1:])
    return d_weight.float(), summed.sum(dim=(0, 1)), by_time.permute(2, 0, 1)


def _stage_times(starts: Tensor, lengths: Tensor, c: Tensor) -> Tensor:
    """Time of every stage evaluation, (J,)."""
    times = starts[:, None] + lengths[:, None] * c[None, :]
    return torch.cat([times[0, :1], times[:, 1:].reshape(-1)])


def storage(precision: Precision) -> torch.dtype:
    """In which the convolutions' inputs are kept."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def time_map(kernel: Float[Tensor, "C 1 3 3"], side: int) -> Float[Tensor, "C H W"]:
    """What a plane of ones contributes through the time channel's kernel: the sum of the taps that fall inside the image."""
    return (kernel.reshape(-1, 9) @ _taps_inside(side, kernel.device, kernel.dtype)).unflatten(1, (side, side))


@cache
def _taps_inside(side: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "9 positions"]:
    """Ones where a tap at a position reads the image, zeros where it reads the border."""
    one_hot = torch.eye(9).reshape(9, 1, 3, 3)
    inside = functional.conv2d(torch.ones(1, 1, side, side), one_hot, padding=1)[0]
    return inside.flatten(1).to(device=device, dtype=dtype)
