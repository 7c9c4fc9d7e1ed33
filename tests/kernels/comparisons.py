"""The fused kernels against the layers and the solver that they replace; usable on CUDA and in Triton's interpreter."""

from __future__ import annotations

import torch
from torch import nn

from ltnode.kernels.conv_trajectory import conv_trajectory
from ltnode.kernels.norm_relu import run_fused
from ltnode.models.fused import field_tensors, stage_weights
from ltnode.models.images import ConvField, init_paper_
from ltnode.ode.replay import replay
from ltnode.ode.tableau import get_tableau


def rough_field(width: int, seed: int) -> ConvField:
    """A field with every parameter away from its special initial value (biases 0, scales 1)."""
    torch.manual_seed(seed)
    field = ConvField(width)
    init_paper_(field)
    with torch.no_grad():
        for p in field.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return field


def relative(a: torch.Tensor, b: torch.Tensor, floor: float) -> float:
    """Norm of the difference in units of the reference, or of the floor where the true value is zero by symmetry."""
    return float((a.detach().double() - b.detach()).norm() / b.detach().norm().clamp_min(floor))


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
    """Relative errors of states, error norms and all gradients against the float64 replay, on fresh random inputs."""
    tableau = get_tableau(method)
    field = rough_field(width, seed=len(edges) + side).to(device)
    exact = reference_field(width).to(device).double()
    exact.load_state_dict({k: v.double() for k, v in field.state_dict().items()})
    y = torch.randn(batch, width, side, side, device=device, requires_grad=True)
    y_exact = y.detach().double().requires_grad_()
    times = torch.tensor([0.0, 0.31, 0.77, 1.0], device=device) * edges[-1]
    reference = replay(exact, tableau, y_exact, edges, times.double(), 1e-2, 1e-2)
    weight = torch.randn(reference.states.shape, device=device)
    wanted = torch.autograd.grad((reference.states * weight.double()).sum(), [y_exact, *exact.parameters()])

    grid = torch.tensor(edges, dtype=torch.float64, device=device)
    if poison:  # what the kernels do not write must not look right: fill the memory they are going to get
        junk = [torch.full((1 << 22,), float("nan"), device=device) for _ in range(8)]
        del junk
    stages, squares = conv_trajectory(
        y, field_tensors(field, side), grid[:-1].float(), grid.diff().float(), tableau, 1e-2, 1e-2, precision
    )
    states = y + torch.tensordot(stage_weights(tableau, grid, times), stages, dims=1)
    got = torch.autograd.grad((states * weight).sum(), [y, *field.parameters()])
    names = ["y0", *(name for name, _ in field.named_parameters())]
    scale = float(wanted[0].norm()) * 1e-3
    errors = {f"grad {n}": relative(a, b, scale) for n, a, b in zip(names, got, wanted, strict=True)}
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


def layer_errors(layers: nn.Sequential, shape: tuple[int, ...], device: str) -> dict[str, float]:
    """Relative errors of output and gradients of a Sequential run with fused norms, against its own layers in float64."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in layers.parameters():
            p.add_(0.1 * torch.randn_like(p))
    layers = layers.to(device)
    x = torch.randn(shape, device=device, requires_grad=True)
    fused = run_fused(layers, x)
    weight = torch.randn_like(fused)
    got = torch.autograd.grad((fused * weight).sum(), [x, *layers.parameters()])
    exact = layers.double()
    x_exact = x.detach().double().requires_grad_()
    out = exact(x_exact)
    wanted = torch.autograd.grad((out * weight.double()).sum(), [x_exact, *exact.parameters()])
    errors = {f"grad {i}": relative(a, b, 1e-3) for i, (a, b) in enumerate(zip(got, wanted, strict=True))}
    return {"output": relative(fused, out, 1e-9), **errors}
