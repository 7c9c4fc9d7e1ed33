"""Compare the fused kernels with the layers and the solver that they replace, on CUDA, emulated or in Triton's interpreter."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from ltnode.accelerate.fused import field_tensors, fused_outputs, stage_weights
from ltnode.accelerate.kernels.conv_trajectory import conv_trajectory
from ltnode.accelerate.kernels.cuda.interpolated_head import interpolated_head
from ltnode.accelerate.kernels.cuda.norm_relu import norm_relu
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.models import build
from ltnode.models.images import ConvField, init_paper_
from ltnode.ode.replay import replay
from ltnode.ode.tableau import get_tableau


def rough_field(width: int, seed: int) -> ConvField:
    """Return a field whose parameters all differ from their special initial values (biases 0, scales 1)."""
    torch.manual_seed(seed)
    field = ConvField(width)
    init_paper_(field)
    with torch.no_grad():
        for p in field.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return field


def as_error(value: torch.Tensor) -> float:
    """Return the value as a float, with NaN as infinity: `max` ignores NaN, so a bound would not notice it."""
    error = float(value.detach())
    return math.inf if math.isnan(error) else error


def relative(a: torch.Tensor, b: torch.Tensor, floor: float) -> float:
    """Return the norm of the difference relative to the reference, or to the floor where the true value is zero by symmetry."""
    return as_error((a.detach().double() - b.detach()).norm() / b.detach().norm().clamp_min(floor))


def fill_free_memory(device: str) -> None:
    """Fill memory that the kernels will be given with NaN, so that a value they forget to write does not look right."""
    junk = [torch.full((1 << n,), float("nan"), device=device) for n in (10, 14, 18, 20, 22, 22, 22, 22, 24, 24)]
    del junk


def trajectory_errors(
    width: int,
    side: int,
    batch: int,
    edges: list[float],
    method: str,
    precision: str,
    device: str,
    poison: bool = False,
    reference_field: type[ConvField] = ConvField,
) -> dict[str, float]:
    """Return relative errors of states, error norms and all gradients against the float64 replay, on random inputs."""
    tableau = get_tableau(method)
    field = rough_field(width, seed=len(edges) + side).to(device)
    exact = reference_field(width).to(device).double()
    exact.load_state_dict({k: v.double() for k, v in field.state_dict().items()})
    y = torch.randn(batch, width, side, side, device=device, requires_grad=True)
    y_exact = y.detach().double().requires_grad_()
    times = torch.tensor([0.0, 0.31, 0.77, 1.0], device=device) * edges[-1]
    reference = replay(exact, tableau, y_exact, edges, times.double(), 1e-2, 1e-2)
    weight = torch.randn(reference.states.shape, device=device)
    expected = torch.autograd.grad((reference.states * weight.double()).sum(), [y_exact, *exact.parameters()])

    grid = torch.tensor(edges, dtype=torch.float64, device=device)
    if poison:
        fill_free_memory(device)
    stages, squares = conv_trajectory(
        y, field_tensors(field, side), grid[:-1].float(), grid.diff().float(), tableau, 1e-2, 1e-2, precision
    )
    states = y + torch.tensordot(stage_weights(tableau, grid, times), stages, dims=1)
    actual = torch.autograd.grad((states * weight).sum(), [y, *field.parameters()])
    names = ["y0", *(name for name, _ in field.named_parameters())]
    floor = float(expected[0].norm()) * 1e-3
    errors = {f"grad {n}": relative(a, b, floor) for n, a, b in zip(names, actual, expected, strict=True)}
    with torch.no_grad():
        unsaved, _ = conv_trajectory(
            y, field_tensors(field, side), grid[:-1].float(), grid.diff().float(), tableau, 1e-2, 1e-2, precision
        )
    return {
        "states": relative(states, reference.states, 1e-9),
        "error norms": relative(squares.mean(dim=1).sqrt(), reference.norms, 1e-2),
        "without saving": relative(unsaved, stages.double(), 1e-9),
        **errors,
    }


def layer_errors(layers: nn.Sequential, shape: tuple[int, ...], device: str, poison: bool = False) -> dict[str, float]:
    """Return relative errors of `run_fused` and its gradients against the layers in float64."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in layers.parameters():
            p.add_(0.1 * torch.randn_like(p))
    layers = layers.to(device)
    x = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
    if poison:
        fill_free_memory(device)
    fused = run_fused(layers, x)
    weight = torch.randn_like(fused)
    if poison:
        fill_free_memory(device)
    actual = torch.autograd.grad((fused * weight).sum(), [x, *layers.parameters()])
    exact = layers.double()
    x_exact = x.detach().double().requires_grad_()
    out = exact(x_exact)
    expected = torch.autograd.grad((out * weight.double()).sum(), [x_exact, *exact.parameters()])
    # The gradient of a bias before a norm with one channel per group is zero up to rounding, which grows with the others.
    floor = 1e-2 * max(float(b.norm()) for b in expected)
    errors = {f"grad {i}": relative(a, b, floor) for i, (a, b) in enumerate(zip(actual, expected, strict=True))}
    return {"output": relative(fused, out, 1e-9), **errors}


def norm_errors(
    shape: tuple[int, int, int, int], biased: bool, dtype: torch.dtype, device: str, poison: bool = False
) -> dict[str, float]:
    """Return errors of `norm_relu` with two channels per group against the layers in float64 on the same rounded inputs.

    For output and gradient of x: the largest difference of a value in units of its rounding (2^-8 of it in bfloat16, 2^-16 in
    float32, plus 1e-5 of the largest value). For the parameters' gradients: relative errors. The output's gradient is zero where
    the argument of the ReLU is so close to zero that float32 may see the other sign.
    """
    torch.manual_seed(sum(shape))
    channels = shape[1]
    norm = nn.GroupNorm(channels // 2, channels).to(device)
    with torch.no_grad():
        for p in norm.parameters():
            p.add_(0.3 * torch.randn_like(p))
    bias = torch.randn(channels, device=device).requires_grad_() if biased else None
    x = (1.5 * torch.randn(shape, device=device) + 2 * torch.randn(channels, 1, 1, device=device)).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    inputs = [t for t in (x, norm.weight, norm.bias, bias) if t is not None]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    shifted = exact[0] + exact[3][:, None, None] if biased else exact[0]
    argument = functional.group_norm(shifted, channels // 2, exact[1], exact[2], norm.eps)
    d_out = (torch.randn(shape, device=device) * (argument.abs() > 1e-4)).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = [functional.relu(argument), *torch.autograd.grad(functional.relu(argument), exact, d_out.double())]

    if poison:
        fill_free_memory(device)
    out = norm_relu(x, norm, bias)
    if poison:
        fill_free_memory(device)
    actual = [out, *torch.autograd.grad(out, inputs, d_out)]
    names = ("output", "grad x", "grad scale", "grad shift", "grad bias")
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-16
    errors = {}
    for name, a, b in zip(names, actual, expected, strict=False):
        if a.ndim == 4:
            assert a.dtype == dtype and a.is_contiguous(memory_format=torch.channels_last)
            errors[name] = as_error(((a - b).abs() / (rounding * b.abs() + 1e-5 * b.abs().max())).max())
        else:
            errors[name] = relative(a, b, 1e-9)
    return errors


def head_errors(
    ends: int,
    side: int,
    device: str,
    width: int = 64,
    batch: int = 2,
    evaluations: int = 4,
    per_sample: bool = False,
    poison: bool = False,
) -> dict[str, float]:
    """Return relative errors of the interpolated head's output and gradients against layers and einsum in float64."""
    torch.manual_seed(ends + side)
    norm = nn.GroupNorm(width // 2, width).to(device)
    with torch.no_grad():
        for p in norm.parameters():
            p.add_(0.2 * torch.randn_like(p))
    stages = torch.randn(evaluations, batch, side, side, width, device=device).permute(0, 1, 4, 2, 3).requires_grad_()
    base = torch.randn(batch, width, side, side, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = torch.randn((ends, batch, evaluations) if per_sample else (ends, evaluations), device=device)
    if poison:
        fill_free_memory(device)
    pooled = interpolated_head(stages, base, weights, norm)
    d_pooled = torch.randn_like(pooled)
    if poison:
        fill_free_memory(device)
    actual = torch.autograd.grad((pooled * d_pooled).sum(), [stages, base, norm.weight, norm.bias])

    exact = [t.detach().double().requires_grad_() for t in (stages, base, norm.weight, norm.bias)]
    every = (weights if per_sample else weights[:, None].expand(-1, batch, -1)).double()
    states = exact[1] + torch.einsum("sbj,jbchw->sbchw", every, exact[0])
    active = functional.relu(functional.group_norm(states.flatten(0, 1), width // 2, exact[2], exact[3], norm.eps))
    reference = active.mean(dim=(2, 3)).reshape(ends, batch, width)
    expected = torch.autograd.grad((reference * d_pooled.double()).sum(), exact)
    names = ("stages", "base", "scale", "shift")
    return {
        "output": relative(pooled, reference, 1e-9),
        **{f"grad {n}": relative(a, b, 1e-9) for n, a, b in zip(names, actual, expected, strict=True)},
        # A gradient in the memory layout of the stages saves the backward pass of the trajectory a copy.
        "copies": float(actual[0].stride() != stages.stride()),
    }


def network_errors(
    x: torch.Tensor, times: torch.Tensor, edges: list[float], head: nn.Sequential, width: int, own_weights: bool
) -> dict[str, float]:
    """Return relative errors of `fused_outputs` in float32, from images to outputs and gradients, against the layers in float64.

    With ``own_weights``, the caller computes the weights of the stages.
    """
    device = str(x.device)
    model = build("lt-node", "mnist", seed=0, width=width).to(device)
    model.head = head.to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    parameters = [p for part in (model.stem, model.field, model.head) for p in part.parameters()]
    grid = torch.tensor(edges, dtype=torch.float64, device=device)
    weights = (lambda: stage_weights(get_tableau(model.solver.method), grid, times)) if own_weights else None
    outputs, norms = fused_outputs(model, x, times, grid, "fp32", weights)
    weight = torch.randn_like(outputs)
    actual = torch.autograd.grad((outputs * weight).sum(), parameters)
    model.double()
    o = model.solver
    replayed = replay(model.field, get_tableau(o.method), model.initial_state(x.double()), edges, times.double(), o.rtol, o.atol)
    reference = model.outputs_at(replayed.states)
    expected = torch.autograd.grad((reference * weight.double()).sum(), parameters)
    floor = 1e-2 * max(float(b.norm()) for b in expected)
    return {
        "outputs": relative(outputs, reference, 1e-9),
        "norms": relative(norms, replayed.norms, 1e-2),
        "gradients": max(relative(a, b, floor) for a, b in zip(actual, expected, strict=True)),
    }
