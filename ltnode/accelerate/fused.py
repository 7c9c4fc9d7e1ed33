"""Stem, fused trajectory, interpolation and head of the convolutional network: what replaces ``model.forward`` on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import nn

from ltnode.accelerate.kernels.conv_trajectory import EPS, FieldTensors, conv_trajectory
from ltnode.accelerate.kernels.cuda import gamma_posterior, interpolated_head
from ltnode.accelerate.kernels.fused_sequential import is_pooling, run_fused
from ltnode.accelerate.kernels.trajectory_backend import Precision
from ltnode.endtime import AmortizedGammaTime, GammaDistribution, GammaTime
from ltnode.endtime.gamma import quadrature_rule
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor

_LARGEST_TILE = 64


def why_not_field(field: nn.Module, tableau: ButcherTableau) -> str | None:
    """Why the fused trajectory cannot serve this field and method; None where it can."""
    if type(field) is not ConvField:  # a subclass may compute something else
        return f"the field is a {type(field).__name__}, and the fused trajectory is written for ConvField"
    width, modules = field.norm1.num_channels, list(field.modules())
    if width < 32 or width & (width - 1):
        return f"the field has {width} channels, and the kernels need a power of two from 32"
    if any(module.eps != EPS for module in modules if isinstance(module, nn.GroupNorm)):
        return f"a norm of the field has another eps than the kernels' {EPS:g}"
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules):
        return "a hook watches the field, whose layers the kernels do not call"
    if not tableau.fsal or not tableau.adaptive:
        return f"method {tableau.name!r} does not end its steps with the field at the new state, or has no error estimate"
    return None


def why_not_state(shape: Sequence[int], width: int) -> str | None:
    """Why the fused trajectory cannot serve states of this shape (B, C, H, W); None where it can."""
    if len(shape) != 4 or shape[1] != width or shape[2] != shape[3] or shape[2] * shape[3] > _LARGEST_TILE:
        return f"the state has shape {tuple(shape)}, and the kernels need a square of at most {_LARGEST_TILE} positions"
    return None


def why_not_fused(model: LatentTimeODE, x: Tensor) -> str | None:
    """Why the fused kernels cannot serve this model and input; None where they can."""
    reason = why_not_field(model.field, get_tableau(model.solver.method))
    if reason is not None:
        return reason
    if model.augment or not isinstance(model.stem, nn.Sequential) or not isinstance(model.head, nn.Sequential):
        return "stem and head must be Sequential, without augmented channels"
    odd = next((p.dtype for p in model.parameters() if p.dtype != torch.float32), None)
    if odd is not None:
        return f"a parameter is {odd}, and the kernels need float32"
    assert isinstance(model.field, ConvField)
    with torch.no_grad():
        reason = why_not_state(model.initial_state(x[:1]).shape, model.field.norm1.num_channels)
    if reason is not None:
        return reason
    return None if find_spec("triton") is not None else "Triton is not installed"


def field_tensors(field: ConvField, side: int) -> FieldTensors:
    """The field's parameters as the fused trajectory takes them."""
    return FieldTensors.of((field.conv1.conv, field.conv2.conv), (field.norm1, field.norm2, field.norm3), side)


def stage_weights(tableau: ButcherTableau, edges: Tensor, times: Tensor) -> Float[Tensor, "S *rest"]:
    """`dense_weights` with the last stage of a step and the first of the next in one column: float32 (S, J) or (S, B, J).

    Every step enters with ``theta = (T - t_m) / h_m`` limited to [0, 1], which is 1 for those before T and 0 for those after;
    one table holds the interpolant's coefficients of all steps. A few kernels, and no gradient in the times.

    Args:
        tableau: A method whose last stage is the field at the new state.
        edges: Step edges (n+1,) on the device.
        times: (S,) or (S, B), within the edges.
    """
    per_sample = times.detach().to(torch.float64).reshape(times.shape[0], -1).mT
    left, length = edges[:-1].to(torch.float64), edges.to(torch.float64).diff()
    exponents, table = _dense_columns(tableau, len(length), times.device)
    theta = ((per_sample[:, None, :] - left[:, None]) / length.clamp_min(torch.finfo(torch.float64).tiny)[:, None]).clamp(0, 1)
    powers = length[:, None, None] * theta[:, :, None, :] ** exponents[:, None]
    rows = torch.bmm(table.expand(len(theta), -1, -1), powers.flatten(1, 2))
    return interpolated_head.padded_ends(rows[0].mT if times.ndim == 1 else rows.movedim(-1, 0))


@cache
def _dense_columns(tableau: ButcherTableau, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exponents p (1, 2, ...) and the table (J, n P) of what ``h_m theta_m^p`` contributes to each column.

    Kept, since a captured program must not copy from the host.
    """
    dense = torch.tensor(tableau.dense, dtype=torch.float64)
    stages, degree = dense.shape
    table = torch.zeros(steps * (stages - 1) + 1, steps, degree, dtype=torch.float64)
    for m in range(steps):
        table[m * (stages - 1) : m * (stages - 1) + stages, m] = dense
    return torch.arange(1, degree + 1, dtype=torch.float64, device=device), table.flatten(1).to(device)


def fused_outputs(
    model: LatentTimeODE,
    x: Tensor,
    times: Tensor,
    edges: Float[Tensor, " n1"],
    precision: Precision,
    weights: Callable[[], Tensor] | None = None,
) -> tuple[Float[Tensor, "S B C"], Float[Tensor, " n"]]:
    """Outputs of the members and the batch-wide error norm of every step; differentiable in the parameters and in x.

    Args:
        model: One that `why_not_fused` has nothing against.
        x: (B, C, H, W).
        times: (S,) or (S, B), within the edges.
        edges: Step edges on the device.
        precision: Of the convolutions.
        weights: Gives `stage_weights` of these edges and times when they are needed, where they are computed beside other work.
    """
    assert isinstance(model.field, ConvField) and isinstance(model.stem, nn.Sequential) and isinstance(model.head, nn.Sequential)
    tableau, o = get_tableau(model.solver.method), model.solver
    h = _run_reduced(model.stem, x, precision)
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
    found = stage_weights(tableau, edges, times) if weights is None else weights()
    return _head_outputs(model.head, stages, h, found), squares.mean(dim=1).sqrt()


def fused_posterior_terms(
    model: LatentTimeODE, x: Tensor, times: Tensor, precision: Precision
) -> tuple[Tensor | None, Tensor | None]:
    """`LatentTimeODE.posterior_terms` with encoder, densities and divergence in fused kernels where there are any."""
    end_time = model.end_time
    if isinstance(end_time, AmortizedGammaTime) and isinstance(end_time.encoder, nn.Sequential):
        alpha, beta = end_time.shape_and_rate(_run_reduced(end_time.encoder, x, precision))
    elif isinstance(end_time, GammaTime):
        alpha, beta = end_time.shape_and_rate()
    else:
        return model.posterior_terms(x, times)
    prior = end_time.prior_distribution
    if gamma_posterior.unsupported_reason(alpha, times) is not None:
        q = GammaDistribution(alpha, beta, prior.window, prior)
        return q.log_prob(times), q.kl()
    family = gamma_posterior.Family(prior.window, prior.in_float64, quadrature_rule(alpha.device))
    return gamma_posterior.posterior_terms(alpha, beta, times, family)


def _run_reduced(layers: nn.Sequential, x: Tensor, precision: Precision) -> Tensor:
    """Layers on images with fused norms and convolutions in a precision; the result is float32."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        return run_fused(layers, x).float()


def states_at(stages: Float[Tensor, "J B C H W"], base: Float[Tensor, "B C H W"], weights: Tensor) -> Float[Tensor, "S B C H W"]:
    """``base + sum_j weights[s, (b,) j] stages[j]``, channels last in memory as the kernels store the stages: no copy."""
    rows, first = stages.permute(0, 1, 3, 4, 2), base.permute(0, 2, 3, 1)
    if weights.ndim == 2:
        states = first + (weights @ rows.reshape(rows.shape[0], -1)).reshape(-1, *first.shape)
    else:
        states = first + torch.einsum("sbj,jbhwc->sbhwc", weights, rows)
    return states.permute(0, 1, 4, 2, 3)


def _head_outputs(head: nn.Sequential, stages: Tensor, h: Tensor, weights: Tensor) -> Float[Tensor, "S B C"]:
    """The head at `states_at` of the stages."""
    layers = list(head)
    if (
        len(layers) > 3
        and isinstance(layers[0], nn.GroupNorm)
        and isinstance(layers[1], nn.ReLU)
        and is_pooling(layers[2:4])
        and interpolated_head.unsupported_reason(layers[0], stages) is None
    ):
        pooled = interpolated_head.interpolated_head(stages, h, weights, layers[0])
        return head[4:](pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])
    states = states_at(stages, h, weights)
    return run_fused(head, states.flatten(0, 1)).unflatten(0, states.shape[:2])
