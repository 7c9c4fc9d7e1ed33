"""A whole model on its fast path against itself in float64: loss, predictions and the gradient of every parameter."""

from __future__ import annotations

import copy

import torch

from kernels.comparisons import as_error, relative
from ltnode.device import autocast, product_precision
from ltnode.models import LatentTimeODE, build
from ltnode.ode.replay import replay
from ltnode.ode.tableau import get_tableau

N_DATA = 50_000


def rough_model(name: str, data: str, seed: int) -> LatentTimeODE:
    """A model with every parameter away from its special initial value (biases 0, scales 1, a head close to 0)."""
    model = build(name, data, seed=seed)
    assert isinstance(model, LatentTimeODE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def model_errors(
    name: str, data: str, batch: int, steps: int, precision: str, device: str, fused: bool = True, seed: int = 0
) -> dict[str, float]:
    """Relative errors on fresh random images, labels and end-times, on a grid of equal steps over the window.

    The reference is the same model in float64 through `ltnode.ode.replay`: stem, trajectory, interpolation, head, posterior and
    objective. "prediction" is the pass without a graph, as the largest difference of an averaged probability.

    Args:
        name: A latent-time model.
        data: Image set whose shapes to take.
        batch: Number of images.
        steps: Number of solver steps.
        precision: Of the fast path.
        device: Where.
        fused: The fused kernels; otherwise the layers, as a captured step without kernels has them.
        seed: Of weights, images, labels and end-times.
    """
    model = rough_model(name, data, seed)
    exact = copy.deepcopy(model).double().to(device)
    model = model.to(device)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(batch, *model.spec["input"]["shape"], generator=generator).to(device)
    y = torch.randint(0, 10, (batch,), generator=generator).to(device)
    times = model.training_times(batch, seed, steps, torch.arange(batch)).to(device)
    edges = torch.linspace(0.0, model.end_time.window[1], steps + 1, dtype=torch.float64).to(device)

    wanted_outputs, wanted_norms = _outputs(exact, x.double(), times.double(), edges, "fp32", False)
    terms = exact.posterior_terms(x.double(), times.double())
    wanted = exact.compose_loss(wanted_outputs, y, times.double(), terms, N_DATA).loss
    wanted_gradients = torch.autograd.grad(wanted, list(exact.parameters()))
    if device != "cpu":  # what the kernels do not write must not look right: fill the memory they are going to get
        junk = [torch.full((1 << 24,), float("nan"), device=device) for _ in range(8)]
        del junk
    with product_precision(precision):
        outputs, norms = _outputs(model, x, times, edges, precision, fused)
        with autocast(precision, x.device):
            posterior = model.posterior_terms(x, times)
        loss = model.compose_loss(outputs.float(), y, times, posterior, N_DATA).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            unsaved, _ = _outputs(model, x, times, edges, precision, fused)
    names = [parameter for parameter, _ in model.named_parameters()]
    total = torch.cat([g.reshape(-1) for g in wanted_gradients])
    # A bias before a norm has next to no gradient but for rounding: errors below a hundredth of the whole do not matter.
    floor = float(total.norm()) * 1e-2
    return {
        "loss": relative(loss.detach(), wanted.detach(), 1e-9),
        "outputs": relative(outputs.detach(), wanted_outputs.detach(), 1e-9),
        "prediction": _largest_difference(unsaved, wanted_outputs.detach()),
        "error norms": relative(norms.detach(), wanted_norms.detach(), 1e-2),
        "gradient": relative(torch.cat([g.reshape(-1) for g in gradients]), total, 1e-12),
        **{f"grad {n}": relative(a, b, floor) for n, a, b in zip(names, gradients, wanted_gradients, strict=True)},
    }


def _outputs(
    model: LatentTimeODE, x: torch.Tensor, times: torch.Tensor, edges: torch.Tensor, precision: str, fused: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    o = model.solver
    if fused:
        from ltnode.accelerate.fused import fused_outputs

        return fused_outputs(model, x, times, edges, precision)  # type: ignore[arg-type]
    with autocast(precision, x.device):
        h = model.initial_state(x)
        h = h if h.dtype == torch.float64 else h.float()
        result = replay(model.field, get_tableau(o.method), h, edges, times, o.rtol, o.atol)
        return model.outputs_at(result.states), result.norms


def _largest_difference(outputs: torch.Tensor, wanted: torch.Tensor) -> float:
    probs, exact = (torch.softmax(logits.double(), dim=-1).mean(dim=0) for logits in (outputs, wanted))
    return as_error((probs - exact).abs().max())
