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
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Tensor


def fused_replayer(field: nn.Module, h: Tensor, times: Tensor, method: str, rtol: float, atol: float) -> Replayer | None:
    """Return a function that replaces `ltnode.ode.replay.replay` on a training grid; None where the kernels do not support it.

    Sums and states are float32, and the result has the dtype of the state.
    """
    tableau = get_tableau(method)
    if unsupported_reason_fused_solve(field, h, times, tableau) is not None:
        return None
    precision = conv_precision()
    if precision is None:
        return None
    assert isinstance(field, ConvField)

    def fused_replay(y: Tensor, edges: Sequence[float], times: Tensor) -> Replay:
        with torch.autocast(y.device.type, enabled=False):  # autocast would round the matrix products below
            base = y.float()
            grid = torch.tensor(edges, dtype=torch.float64, device=y.device)
            starts, lengths = grid[:-1].float(), grid.diff().float()
            tensors = field_tensors(field, y.shape[-1])
            stages, squares = conv_trajectory(base, tensors, starts, lengths, tableau, rtol, atol, precision)
            weights = stage_weights(tableau, grid, times)
            return Replay(states_at(stages, base, weights).to(y.dtype), squares.detach().mean(dim=1).sqrt())

    return fused_replay


def conv_precision() -> Precision | None:
    """Return the precision in which torch would run the field's convolutions; None if the kernels do not offer it."""
    if torch.is_autocast_enabled("cuda"):
        return "bf16" if torch.get_autocast_dtype("cuda") == torch.bfloat16 else None
    return "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "fp32"  # type: ignore[attr-defined]
