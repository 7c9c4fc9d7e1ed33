"""Stem, fused trajectory, interpolation and head of the convolutional network: what replaces ``model.forward`` on CUDA."""

from __future__ import annotations

import torch
from torch import nn

from ltnode.kernels.conv_trajectory import FieldTensors, Precision, conv_trajectory, time_map
from ltnode.kernels.norm_relu import run_fused
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode.dense import dense_weights
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor

_LARGEST_TILE = 64


def why_not_fused(model: LatentTimeODE, x: Tensor) -> str | None:
    """Why the fused kernels cannot serve this model and input; None where they can."""
    if not isinstance(model.field, ConvField):
        return f"the field is a {type(model.field).__name__}, and the fused trajectory is written for ConvField"
    width = model.field.norm1.num_channels
    if width < 32 or width & (width - 1):
        return f"the field has {width} channels, and the kernels need a power of two from 32"
    if not get_tableau(model.solver.method).fsal:
        return f"method {model.solver.method!r} does not end its steps with the field at the new state"
    if model.augment or not isinstance(model.stem, nn.Sequential) or not isinstance(model.head, nn.Sequential):
        return "stem and head must be Sequential, without augmented channels"
    with torch.no_grad():
        shape = model.initial_state(x[:1]).shape
    if shape[2] != shape[3] or shape[2] * shape[3] > _LARGEST_TILE:
        return f"the state is {shape[2]}x{shape[3]}, and the kernels need a square of at most {_LARGEST_TILE} positions"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    return None


def field_tensors(field: ConvField, side: int) -> FieldTensors:
    """The field's parameters as the fused trajectory takes them."""
    w1, w2 = field.conv1.conv.weight, field.conv2.conv.weight
    b1, b2 = field.conv1.conv.bias, field.conv2.conv.bias
    assert b1 is not None and b2 is not None
    norms = (field.norm1, field.norm2, field.norm3)
    return FieldTensors(
        weights=(w1[:, 1:], w2[:, 1:]),
        biases=(b1, b2),
        time_maps=(time_map(w1[:, :1], side), time_map(w2[:, :1], side)),
        scales=(norms[0].weight, norms[1].weight, norms[2].weight),
        shifts=(norms[0].bias, norms[1].bias, norms[2].bias),
        groups=field.norm1.num_groups,
    )


def stage_weights(tableau: ButcherTableau, edges: Tensor, times: Tensor) -> Float[Tensor, "S *rest"]:
    """`dense_weights` with the last stage of a step and the first of the next in one column: (S, J) or (S, B, J)."""
    w = dense_weights(tableau, edges, times).float()
    per_step = tableau.stages - 1
    flat = torch.cat([w[..., 0, :1], w[..., 1:].flatten(-2)], dim=-1)
    flat[..., per_step:-1:per_step] += w[..., 1:, 0]
    return flat


def fused_outputs(
    model: LatentTimeODE, x: Tensor, times: Tensor, edges: Float[Tensor, " n1"], precision: Precision
) -> tuple[Float[Tensor, "S B C"], Float[Tensor, " n"]]:
    """Outputs of the members and the batch-wide error norm of every step; differentiable in the parameters and in x.

    Args:
        model: One that `why_not_fused` has nothing against.
        x: (B, C, H, W).
        times: (S,) or (S, B), within the edges.
        edges: Step edges on the device.
        precision: Of the convolutions.
    """
    assert isinstance(model.field, ConvField) and isinstance(model.stem, nn.Sequential) and isinstance(model.head, nn.Sequential)
    tableau, o = get_tableau(model.solver.method), model.solver
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        h = run_fused(model.stem, x.contiguous(memory_format=torch.channels_last)).float()
    edges32 = edges.float()
    stages, squares = conv_trajectory(
        h,
        field_tensors(model.field, h.shape[-1]),
        edges32[:-1].contiguous(),
        edges32.diff(),
        tableau,
        o.rtol,
        o.atol,
        precision,
    )
    weights = stage_weights(tableau, edges, times)
    batch, channels, side, _ = h.shape
    base = h.permute(0, 2, 3, 1)
    rows = stages.permute(0, 1, 3, 4, 2)
    if weights.ndim == 2:
        states = base + (weights @ rows.reshape(rows.shape[0], -1)).reshape(-1, *base.shape)
    else:
        states = base + torch.einsum("sbj,jbhwc->sbhwc", weights, rows)
    flat = states.reshape(-1, side, side, channels).permute(0, 3, 1, 2)
    outputs = run_fused(model.head, flat).reshape(states.shape[0], batch, -1)
    return outputs, squares.mean(dim=1).sqrt()
