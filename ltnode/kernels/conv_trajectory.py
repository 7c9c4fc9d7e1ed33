"""Autograd around the fused trajectory of the convolutional field.

``K, norms = conv_trajectory(y0, field_tensors, starts, lengths, ...)`` gives the stages of all steps, from which the states at
any end-times follow as a matrix product with `ltnode.ode.dense.dense_weights`. The reference is `ltnode.ode.replay` with
`ltnode.models.images.ConvField`; the tests compare states, error norms and all gradients with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch.nn import functional

from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

Precision = Literal["fp32", "tf32", "bf16"]
_EPS = 1e-5


@dataclass
class _Launch:
    """How the kernels are compiled; measured, not derived."""

    warps: int = 4
    unroll: int = 1


_LAUNCH = _Launch()


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

    def flat(self) -> tuple[Tensor, ...]:
        """All tensors in the order of the autograd function."""
        return (*self.weights, *self.biases, *self.time_maps, *self.scales, *self.shifts)


@cache
def _tables(tableau: ButcherTableau, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients a (square), c, error on the device; kept, since a captured program must not copy from the host."""
    n = tableau.stages
    a = torch.zeros(n, n)
    for i, row in enumerate(tableau.a):
        a[i, : len(row)] = torch.tensor(row)
    return a.to(device), torch.tensor(tableau.c).to(device), torch.tensor(tableau.error).to(device)


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
        tableau: An adaptive method whose last stage is the field at the new state.
        rtol: Relative tolerance of the error.
        atol: Absolute tolerance of the error.
        precision: Of the convolutions; states, norms and Runge-Kutta sums are float32.

    Returns:
        Stages (J, B, C, H, W) with J = n (stages - 1) + 1, and per step and sample the mean square of the error in units of the
        tolerance: ``sqrt(mean over the batch) < 1`` meets it.
    """
    needs_graph = torch.is_grad_enabled()
    return _ConvTrajectory.apply(
        y0, starts, lengths, tableau, (rtol, atol), precision, tensors.groups, needs_graph, *tensors.flat()
    )


class _ConvTrajectory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y0: Tensor,
        starts: Tensor,
        lengths: Tensor,
        tableau: ButcherTableau,
        tolerance: tuple[float, float],
        precision: Precision,
        groups: int,
        save: bool,
        *flat: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from ltnode.kernels.conv_trajectory_triton import forward_kernel

        w1, w2, bias1, bias2, map1, map2, g1, g2, g3, b1, b2, b3 = (x.detach() for x in flat)
        batch, channels, side, _ = y0.shape
        steps = lengths.shape[0]
        device, dtype = y0.device, _storage(precision)
        evaluations = steps * (tableau.stages - 1) + 1
        a, c, e = _tables(tableau, device)
        cells = (evaluations if save else 1, batch, side, side, channels)
        stages = torch.empty((evaluations, *cells[1:]), device=device)
        states = torch.empty((steps + 1, *cells[1:]), device=device)
        states[0].copy_(y0.detach().permute(0, 2, 3, 1))
        active1, active2 = torch.empty(cells, device=device, dtype=dtype), torch.empty(cells, device=device, dtype=dtype)
        normal = [torch.empty(cells if save else (1,), device=device, dtype=dtype) for _ in range(3)]
        rstd = [torch.empty((cells[0], batch, channels) if save else (1,), device=device) for _ in range(3)]
        squares = torch.empty(steps, batch, device=device)
        forward_kernel[(batch,)](
            states,
            starts,
            lengths,
            steps,
            a,
            c,
            e,
            _taps(w1, dtype),
            _taps(w2, dtype),
            bias1,
            bias2,
            _last(map1),
            _last(map2),
            g1,
            b1,
            g2,
            b2,
            g3,
            b3,
            stages,
            active1,
            active2,
            *normal,
            *rstd,
            squares,
            batch,
            *tolerance,
            _EPS,
            SIDE=side,
            TILE=_tile(side),
            CHANNELS=channels,
            GROUPS=groups,
            N_STAGES=tableau.stages,
            PRECISION=_dot_precision(precision),
            UNROLL=_LAUNCH.unroll,
            SAVE=save,
            num_warps=_LAUNCH.warps,
        )
        ctx.save_for_backward(starts, lengths, active1, active2, *normal, *rstd, *(x.detach() for x in flat))
        ctx.tableau, ctx.precision, ctx.groups = tableau, precision, groups
        return stages.permute(0, 1, 4, 2, 3), squares / (side * side * channels)

    @staticmethod
    def backward(ctx: Any, d_stages: Tensor, _d_squares: Tensor) -> tuple[Tensor | None, ...]:
        from ltnode.kernels.conv_trajectory_triton import backward_kernel

        starts, lengths, active1, active2, n1, n2, n3, r1, r2, r3, *flat = ctx.saved_tensors
        w1, w2, _, _, _, _, g1, g2, g3, b1, b2, _ = flat
        _, batch, side, _, channels = active1.shape
        tableau, precision = ctx.tableau, ctx.precision
        dtype, device = _storage(precision), active1.device
        a, c, _ = _tables(tableau, device)
        d_conv1, d_conv2 = torch.empty_like(active1), torch.empty_like(active2)
        d_argument = torch.empty((tableau.stages, batch, side, side, channels), device=device)
        d_state, carried = torch.zeros((2, batch, side, side, channels), device=device)
        d_affine = torch.empty((batch, 6, channels), device=device)
        backward_kernel[(batch,)](
            d_stages.permute(0, 1, 3, 4, 2).contiguous(),
            d_state,
            carried,
            starts,
            lengths,
            lengths.shape[0],
            a,
            _taps(w1, dtype, transposed=True),
            _taps(w2, dtype, transposed=True),
            g1,
            b1,
            g2,
            b2,
            g3,
            n1,
            n2,
            n3,
            r1,
            r2,
            r3,
            d_conv1,
            d_conv2,
            d_argument,
            d_affine,
            batch,
            SIDE=side,
            TILE=_tile(side),
            CHANNELS=channels,
            GROUPS=ctx.groups,
            N_STAGES=tableau.stages,
            PRECISION=_dot_precision(precision),
            UNROLL=_LAUNCH.unroll,
            num_warps=_LAUNCH.warps,
        )
        times = _stage_times(starts, lengths, c)
        d_w1, d_bias1, d_map1 = _conv_gradients(active1, d_conv1, w1, times)
        d_w2, d_bias2, d_map2 = _conv_gradients(active2, d_conv2, w2, times)
        d_g1, d_b1, d_g2, d_b2, d_g3, d_b3 = d_affine.sum(dim=0)
        d_flat = (d_w1, d_w2, d_bias1, d_bias2, d_map1, d_map2, d_g1, d_g2, d_g3, d_b1, d_b2, d_b3)
        return (d_state.permute(0, 3, 1, 2), None, None, None, None, None, None, None, *d_flat)


def _conv_gradients(
    inputs: Float[Tensor, "J B H W C"], d_outputs: Float[Tensor, "J B H W C"], weight: Tensor, times: Float[Tensor, " J"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of kernel, bias and time map, each over all evaluations in one call."""
    x = inputs.flatten(0, 1).permute(0, 3, 1, 2)
    d = d_outputs.flatten(0, 1).permute(0, 3, 1, 2)
    d_weight = torch.ops.aten.convolution_backward(
        d, x, weight.to(x.dtype), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    per_evaluation = d_outputs.sum(dim=1, dtype=torch.float32)
    d_map = torch.tensordot(times, per_evaluation, dims=1).permute(2, 0, 1)
    return d_weight.float(), per_evaluation.sum(dim=(0, 1, 2)), d_map


def _stage_times(starts: Tensor, lengths: Tensor, c: Tensor) -> Tensor:
    """Time of every stage evaluation, (J,)."""
    times = starts[:, None] + lengths[:, None] * c[None, :]
    return torch.cat([times[0, :1], times[:, 1:].reshape(-1)])


def _taps(weight: Tensor, dtype: torch.dtype, transposed: bool = False) -> Tensor:
    """(9, in, out) from (out, in, 3, 3); (9, out, in) when transposed."""
    order = (2, 3, 0, 1) if transposed else (2, 3, 1, 0)
    return weight.permute(order).reshape(9, weight.shape[0], weight.shape[1]).to(dtype).contiguous()


def _last(image: Tensor) -> Tensor:
    """Channels last."""
    return image.permute(1, 2, 0).contiguous()


def _tile(side: int) -> int:
    return max(16, 1 << (side * side - 1).bit_length())


def _storage(precision: Precision) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _dot_precision(precision: Precision) -> str:
    return "ieee" if precision == "fp32" else "tf32"


def time_map(kernel: Float[Tensor, "C 1 3 3"], side: int) -> Float[Tensor, "C H W"]:
    """What a plane of ones contributes through the time channel's kernel."""
    ones = torch.ones(1, 1, side, side, device=kernel.device, dtype=kernel.dtype)
    return functional.conv2d(ones, kernel, padding=1)[0]
