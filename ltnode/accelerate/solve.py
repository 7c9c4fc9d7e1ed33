"""A training solve over the training grid in fused kernels: `ltnode.ode.replay` with two launches instead of hundreds.

`LatentTimeODE.solve` uses it on CUDA; error check, grid search and statistics remain those of `ltnode.ode.odesolve`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ltnode.accelerate.fused import field_tensors, stage_weights, states_at
from ltnode.accelerate.kernels.conv_trajectory import conv_trajectory
from ltnode.accelerate.plan import unsupported_reason_fused_solve
from ltnode.device import Precision
from ltnode.models.images import ConvField
from ltnode.ode.replay import Replay, Replayer
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor


def fused_replayer(field: nn.Module, h: Tensor, times: Tensor, method: str, rtol: float, atol: float) -> Replayer | None:
    """Return a function that replaces `ltnode.ode.replay.replay` on a training grid; None where the kernels do not support it.

    Args:
        field: The model's field.
        h: Initial state (B, C, H, W), on the device of the solve.
        times: End-times; the kernels compute no gradient in them.
        method: Name of a Runge-Kutta method.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
    """
    tableau = get_tableau(method)
    if unsupported_reason_fused_solve(field, h, times, tableau) is not None:
        return None
    precision = _precision()
    if precision is None:
        return None
    assert isinstance(field, ConvField)

    def step_over(y: Tensor, edges: Sequence[float], at: Tensor) -> Replay:
        return fused_replay(field, tableau, y, edges, at, rtol, atol, precision)

    return step_over


def _precision() -> Precision | None:
    """Return the precision in which torch would run the field's convolutions; None if the kernels do not offer it."""
    if torch.is_autocast_enabled("cuda"):
        return "bf16" if torch.get_autocast_dtype("cuda") == torch.bfloat16 else None
    return "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "fp32"  # type: ignore[attr-defined]


def fused_replay(
    field: ConvField,
    tableau: ButcherTableau,
    y: Float[Tensor, "B C H W"],
    edges: Sequence[float],
    times: Float[Tensor, "S *batch"],
    rtol: float,
    atol: float,
    precision: Precision,
) -> Replay:
    """Replay with batch-wide norms, as `ltnode.ode.replay.replay` does, through the fused trajectory.

    Args:
        field: A field that `plan.unsupported_reason_fused_solve` supports together with the arguments below.
        tableau: The method.
        y: State at the first edge.
        edges: Step edges.
        times: End-times (S,) or (S, B), within the edges; constants.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
        precision: Precision of the convolutions; sums and states are float32, the result has the dtype of y.
    """
    with torch.autocast(y.device.type, enabled=False):  # autocast would round the matrix products below
        base = y.float()
        grid = torch.tensor(edges, dtype=torch.float64, device=y.device)
        starts, lengths = grid[:-1].float(), grid.diff().float()
        stages, squares = conv_trajectory(
            base, field_tensors(field, y.shape[-1]), starts, lengths, tableau, rtol, atol, precision
        )  # fmt: skip
        weights = stage_weights(tableau, grid, times)
        return Replay(states_at(stages, base, weights).to(y.dtype), squares.detach().mean(dim=1).sqrt())
