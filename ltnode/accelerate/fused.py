"""Outputs and posterior terms of the convolutional network in fused kernels: stem, trajectory, interpolation and head.

On CUDA they replace `LatentTimeODE.forward` and `LatentTimeODE.posterior_terms`, which are the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from ltnode.accelerate.kernels.conv_trajectory import FieldTensors, conv_trajectory
from ltnode.accelerate.kernels.cuda import gamma_posterior, interpolated_head
from ltnode.accelerate.kernels.fused_sequential import is_pooling, run_fused
from ltnode.device import Precision
from ltnode.endtime import AmortizedGammaTime, GammaDistribution, GammaTime
from ltnode.endtime.gamma import quadrature_rule
from ltnode.models.end_time_model import PosteriorTerms
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor


def field_tensors(field: ConvField, side: int) -> FieldTensors:
    """Return the field's parameters in the layout of the fused trajectory."""
    return FieldTensors.of((field.conv1.conv, field.conv2.conv), (field.norm1, field.norm2, field.norm3), side)


def stage_weights(tableau: ButcherTableau, edges: Tensor, times: Tensor) -> Float[Tensor, "S *rest"]:
    """Compute the weights of all stages in the dense output at the end-times: float32 (S, J) or (S, B, J).

    The last stage of a step is the first stage of the next, so the two share a column. Every step m contributes at
    ``theta = (T - t_m) / h_m`` clamped to [0, 1], which is 1 for steps before T and 0 for steps after it; one table holds the
    coefficients of the interpolant for all steps. This takes a few kernels and has no gradient in the times (S,) or (S, B), which
    lie within the edges (n+1,).
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
    """Return the exponents p (1, 2, ...) and the table (J, n P) of what ``h_m theta_m^p`` contributes to each column.

    The result is cached because a captured graph must not copy from the host.
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
    """Compute the outputs of the members and the batch-wide error norm of every step; differentiable in parameters and x.

    The model is one that `plan.unsupported_reason_fused_step` supports. ``weights`` returns `stage_weights` of these edges and
    times, for a caller that computes them concurrently; None computes them here.
    """
    assert isinstance(model.field, ConvField) and isinstance(model.stem, nn.Sequential) and isinstance(model.head, nn.Sequential)
    tableau, o = get_tableau(model.solver.method), model.solver
    h = _run_reduced(model.stem, x, precision)
    edges32 = edges.float()
    tensors, starts = field_tensors(model.field, h.shape[-1]), edges32[:-1].contiguous()
    stages, squares = conv_trajectory(h, tensors, starts, edges32.diff(), tableau, o.rtol, o.atol, precision)
    mixing = stage_weights(tableau, edges, times) if weights is None else weights()
    return _head_outputs(model.head, stages, h, mixing), squares.mean(dim=1).sqrt()


def fused_posterior_terms(model: LatentTimeODE, x: Tensor, times: Tensor, precision: Precision) -> PosteriorTerms:
    """Compute `LatentTimeODE.posterior_terms` with fused kernels for encoder, densities and divergence where they exist."""
    end_time = model.end_time
    if isinstance(end_time, AmortizedGammaTime) and isinstance(end_time.encoder, nn.Sequential):
        alpha, beta = end_time.shape_and_rate(_run_reduced(end_time.encoder, x, precision))
    elif isinstance(end_time, GammaTime):
        alpha, beta = end_time.shape_and_rate()
    else:
        return model.posterior_terms(x, times)
    return gamma_terms(end_time, alpha, beta, times)


def gamma_terms(end_time: GammaTime | AmortizedGammaTime, alpha: Tensor, beta: Tensor, times: Tensor) -> PosteriorTerms:
    """Compute log-densities and divergence of Gamma posteriors with these shapes and rates, in one kernel where it applies."""
    prior = end_time.prior_distribution
    if gamma_posterior.unsupported_reason(alpha, times) is not None:
        q = GammaDistribution(alpha, beta, prior.window, prior)
        return PosteriorTerms(q.log_prob(times), q.kl())
    family = gamma_posterior.Family(prior.window, prior.in_float64, quadrature_rule(alpha.device))
    return PosteriorTerms(*gamma_posterior.posterior_terms(alpha, beta, times, family))


def _run_reduced(layers: nn.Sequential, x: Tensor, precision: Precision) -> Tensor:
    """Run layers on images with fused norms and convolutions in a precision; the result is float32."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        return run_fused(layers, x).float()


def states_at(stages: Float[Tensor, "J B C H W"], base: Float[Tensor, "B C H W"], weights: Tensor) -> Float[Tensor, "S B C H W"]:
    """Compute ``base + sum_j weights[s, (b,) j] stages[j]``; channels are last in memory, as in the stages, to avoid a copy."""
    rows, first = stages.permute(0, 1, 3, 4, 2), base.permute(0, 2, 3, 1)
    if weights.ndim == 2:
        states = first + (weights @ rows.reshape(rows.shape[0], -1)).reshape(-1, *first.shape)
    else:
        states = first + torch.einsum("sbj,jbhwc->sbhwc", weights, rows)
    return states.permute(0, 1, 4, 2, 3)


def _head_outputs(head: nn.Sequential, stages: Tensor, h: Tensor, weights: Tensor) -> Float[Tensor, "S B C"]:
    """Apply the head to `states_at`, in one kernel for norm, ReLU and pooling where its layers allow it."""
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
