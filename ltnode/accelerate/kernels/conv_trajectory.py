"""The fused trajectory of the convolutional field as a differentiable function.

``stages, squares = conv_trajectory(y0, field_tensors, starts, lengths, ...)`` returns the stages of all steps. The states at any
end-times follow as a matrix product with `ltnode.ode.dense.dense_weights`. The reference is `ltnode.ode.replay` with
`ltnode.models.images.ConvField`; the tests compare states, error norms and all gradients with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.accelerate.kernels.cuda import conv_trajectory as cuda
from ltnode.accelerate.kernels.trajectory_backend import Problem, TrajectoryBackend
from ltnode.device import Precision
from ltnode.ode.tableau import EULER, ButcherTableau
from ltnode.typing import Float, Tensor

EPS = 1e-5
"""Epsilon of the norms in the kernels."""
ThreeNorms = tuple[nn.GroupNorm, nn.GroupNorm, nn.GroupNorm]


@dataclass(frozen=True)
class FieldTensors:
    """Parameters of the field, as tensors with their autograd graph.

    Attributes:
        weights: Two (C, C, 3, 3), of the state channels.
        biases: Two (C,).
        time_maps: Two (C, H, W), contributions of the time channel at t = 1; see `time_map`.
        scales: Three (C,), of the norms.
        shifts: Three (C,), of the norms.
        groups: Number of groups of the norms.
    """

    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor, Tensor]
    time_maps: tuple[Tensor, Tensor]
    scales: tuple[Tensor, Tensor, Tensor]
    shifts: tuple[Tensor, Tensor, Tensor]
    groups: int

    @classmethod
    def of(cls, convs: tuple[nn.Conv2d, nn.Conv2d], norms: ThreeNorms, side: int) -> FieldTensors:
        """Take the parameters of two convolutions of [t, h] with bias and of the norms before, between and after them."""
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
        """Return all tensors in the order of the autograd function."""
        return (*self.weights, *self.biases, *self.time_maps, *self.scales, *self.shifts)


def choose_backend(y0: Tensor, groups: int, precision: Precision) -> TrajectoryBackend:
    """Return the tensor-core kernels in CUDA where they apply (bfloat16, the paper's width), else those in Triton."""
    if cuda.unsupported_reason(y0, groups, precision) is None:
        return cuda.CudaTrajectory()
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
    """Return the stages of all steps and the squared error of every step.

    Args:
        y0: Initial state; square images.
        tensors: Parameters of the field.
        starts: Left edges of the steps, on the device.
        lengths: Step sizes, on the device.
        tableau: An adaptive method whose last stage is the field at the new state, or one step of a method with one stage.
        rtol: Relative tolerance of the error.
        atol: Absolute tolerance of the error.
        precision: Precision of the convolutions; states, norms and Runge-Kutta sums are float32.

    Returns:
        Stages (J, B, C, H, W) with J = n (stages - 1) + 1, and per step and sample the mean square of the error in units of the
        tolerance. A step meets the tolerance if ``sqrt(mean over the batch) < 1``.
    """
    problem = Problem(tableau, rtol, atol, precision, tensors.groups, save=torch.is_grad_enabled())
    backend = choose_backend(y0, tensors.groups, precision)
    return _ConvTrajectory.apply(y0, starts, lengths, problem, backend, *tensors.flat())


def field_evaluation(
    t: Float[Tensor, ""], y: Float[Tensor, "B C H W"], tensors: FieldTensors, precision: Precision
) -> Float[Tensor, "B C H W"]:
    """Return the field at one time and state in float32, as the only stage of one step of Euler's method."""
    start = t.detach().reshape(1).float()
    stages, _ = conv_trajectory(y.float(), tensors, start, torch.ones_like(start), EULER, 1.0, 1.0, precision)
    return stages[0]


class _ConvTrajectory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y0: Tensor, starts: Tensor, lengths: Tensor, problem: Problem, backend: TrajectoryBackend, *flat: Tensor
    ) -> tuple[Tensor, Tensor]:
        field = [x.detach() for x in flat]
        result = backend.forward(y0.detach().permute(0, 2, 3, 1).contiguous(), field, starts, lengths, problem)
        ctx.save_for_backward(starts, lengths, *result.active, *field, *result.saved)
        ctx.problem, ctx.backend = problem, backend
        return result.stages.permute(0, 1, 4, 2, 3), result.squares / y0[0].numel()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_stages: Tensor, _d_squares: Tensor) -> tuple[Tensor | None, ...]:
        starts, lengths, active1, active2, *rest = ctx.saved_tensors
        field, saved = rest[:12], rest[12:]
        rows = d_stages.permute(0, 1, 3, 4, 2).contiguous()
        result = ctx.backend.backward(rows, field, lengths, ctx.problem, saved)
        d_y0 = result.d_y0.permute(0, 3, 1, 2)
        if not any(ctx.needs_input_grad[-len(field) :]):
            return (d_y0, *[None] * (len(ctx.needs_input_grad) - 1))
        times = _stage_times(starts, lengths, ctx.problem.tableau)
        d = ctx.backend.convolution_gradients((active1, active2), result.d_conv, (field[0], field[1]), times)
        d_g1, d_b1, d_g2, d_b2, d_g3, d_b3 = result.d_norms.sum(dim=0)
        d_flat = (*d.weights, *d.biases, *d.time_maps, d_g1, d_g2, d_g3, d_b1, d_b2, d_b3)
        return (d_y0, None, None, None, None, *d_flat)


def _stage_times(starts: Tensor, lengths: Tensor, tableau: ButcherTableau) -> Float[Tensor, " J"]:
    """Return the time of every stage evaluation."""
    times = starts[:, None] + lengths[:, None] * _nodes(tableau, starts.device)[None, :]
    return torch.cat([times[0, :1], times[:, 1:].reshape(-1)])


@cache  # a captured program must not copy from the host
def _nodes(tableau: ButcherTableau, device: torch.device) -> Float[Tensor, " stages"]:
    return torch.tensor(tableau.c).to(device)


def time_map(weight: Float[Tensor, "C 1 3 3"], side: int) -> Float[Tensor, "C H W"]:
    """Return the convolution of a plane of ones with the time channel's weight: the sum of the taps inside the image."""
    return (weight.reshape(-1, 9) @ _taps_inside(side, weight.device, weight.dtype)).unflatten(1, (side, side))


@cache
def _taps_inside(side: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "9 positions"]:
    """Return 1 where a tap at a position reads the image, 0 where it reads the padding."""
    one_hot = torch.eye(9).reshape(9, 1, 3, 3)
    inside = functional.conv2d(torch.ones(1, 1, side, side), one_hot, padding=1)[0]
    return inside.flatten(1).to(device=device, dtype=dtype)
