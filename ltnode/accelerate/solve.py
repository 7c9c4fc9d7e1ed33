"""A training solve over the kept grid in fused kernels: `ltnode.ode.replay` with two launches instead of hundreds.

`LatentTimeODE.solve` asks here on CUDA; check of the error, search of grids and statistics stay those of `ltnode.ode.odesolve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import nn

from ltnode.accelerate.fused import field_tensors, stage_weights, states_at, why_not_field, why_not_state
from ltnode.accelerate.kernels.conv_trajectory import conv_trajectory
from ltnode.accelerate.kernels.trajectory_backend import Precision
from ltnode.models.images import ConvField
from ltnode.ode.replay import Replay, Replayer, traced
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor


def fused_replayer(field: nn.Module, h: Tensor, times: Tensor, method: str, rtol: float, atol: float) -> Replayer | None:
    """What steps over a kept grid instead of `ltnode.ode.replay.replay`; None where the kernels cannot.

    Args:
        field: The model's field.
        h: Initial state (B, C, H, W); its device, its shape and the precision in force decide.
        times: End-times; the kernels give no gradient in them.
        method: Name of a Runge-Kutta method.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
    """
    tableau = get_tableau(method)
    if why_not_fused_solve(field, h, times, tableau) is not None:
        return None
    precision = _precision()
    if precision is None:
        return None
    assert isinstance(field, ConvField)

    def step_over(y: Tensor, edges: Sequence[float], at: Tensor) -> Replay:
        return fused_replay(field, tableau, y, edges, at, rtol, atol, precision)

    return step_over


def why_not_fused_solve(field: nn.Module, h: Tensor, times: Tensor, tableau: ButcherTableau) -> str | None:
    """Why the fused trajectory cannot serve this solve; None where it can. Reads no value of a tensor."""
    reason = _why_not_here(h.device) or why_not_field(field, tableau)
    if reason is not None:
        return reason
    assert isinstance(field, ConvField)
    if any(p.dtype != torch.float32 or p.device != h.device for p in field.parameters()):
        return f"the kernels need the field's parameters in float32 on {h.device}"
    if times.requires_grad:
        return "a gradient in the end-times is wanted"
    reason = why_not_state(h.shape, field.norm1.num_channels)
    if reason is not None:
        return reason
    if traced(h) or traced(times):
        return "the solve is compiled, transformed or captured"
    return None


@cache
def _why_not_here(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"the state is on {device.type}"
    return None if find_spec("triton") is not None else "Triton is not installed"


def _precision() -> Precision | None:
    """That in which the field's own convolutions would run here; None for one that the kernels do not have."""
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
    """`ltnode.ode.replay.replay` with batch-wide norms, through the fused trajectory.

    Args:
        field: One that `why_not_fused_solve` has nothing against, as all that follows.
        tableau: The method.
        y: The state at the first edge.
        edges: Step edges.
        times: (S,) or (S, B), within the edges; constants.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
        precision: Of the convolutions; sums and states are float32, the result has the dtype of y.
    """
    with torch.autocast(y.device.type, enabled=False):  # which would take the products below for layers
        base = y.float()
        grid = torch.tensor(edges, dtype=torch.float64, device=y.device)
        starts, lengths = grid[:-1].float(), grid.diff().float()
        stages, squares = conv_trajectory(
            base, field_tensors(field, y.shape[-1]), starts, lengths, tableau, rtol, atol, precision
        )  # fmt: skip
        weights = stage_weights(tableau, grid, times)
        return Replay(states_at(stages, base, weights).to(y.dtype), squares.detach().mean(dim=1).sqrt())
