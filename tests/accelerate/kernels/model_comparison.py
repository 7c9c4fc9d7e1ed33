"""Compare a whole model on its fast path with itself in float64: loss, predictions and the gradient of every parameter."""

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
    """Return a model whose parameters all differ from their special initial values (biases 0, scales 1, a head close to 0)."""
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
    """Return relative errors on random images, labels and end-times, on a grid of equal steps over the window.

    The reference is the same model in float64 through `ltnode.ode.replay`: stem, trajectory, interpolation, head, posterior and
    objective. "prediction" is the largest difference of an averaged probability in a pass without a graph.

    Args:
        name: Name of a latent-time model.
        data: Image set that gives the shapes.
        batch: Number of images.
        steps: Number of solver steps.
        precision: Precision of the fast path.
        device: Device of the fast path and the reference.
        fused: Whether to use the fused kernels; otherwise the layers run, as in a captured step without kernels.
        seed: Seed of weights, images, labels and end-times.
    """
    model = rough_model(name, data, seed)
    exact = copy.deepcopy(model).double().to(device)
    model = model.to(device)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(batch, *model.spec["input"]["shape"], generator=generator).to(device)
    y = torch.randint(0, 10, (batch,), generator=generator).to(device)
    times = model.training_times(batch, seed, steps, torch.arange(batch)).to(device)
    edges = torch.linspace(0.0, model.end_time.window[1], steps + 1, dtype=torch.float64).to(device)

    exact_outputs, exact_norms = _outputs(exact, x.double(), times.double(), edges, "fp32", False)
    terms = exact.posterior_terms(x.double(), times.double())
    exact_loss = exact.compose_loss(exact_outputs, y, times.double(), terms, N_DATA).loss
    exact_gradients = torch.autograd.grad(exact_loss, list(exact.parameters()))
    if device != "cpu":  # fill memory that the kernels will be given, so that a value they forget to write does not look right
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
    total = torch.cat([g.reshape(-1) for g in exact_gradients])
    # The gradient of a bias before a norm is mostly rounding: errors below a hundredth of the whole gradient do not matter.
    floor = float(total.norm()) * 1e-2
    return {
        "loss": relative(loss.detach(), exact_loss.detach(), 1e-9),
        "outputs": relative(outputs.detach(), exact_outputs.detach(), 1e-9),
        "prediction": _largest_difference(unsaved, exact_outputs.detach()),
        "error norms": relative(norms.detach(), exact_norms.detach(), 1e-2),
        "gradient": relative(torch.cat([g.reshape(-1) for g in gradients]), total, 1e-12),
        **{f"grad {n}": relative(a, b, floor) for n, a, b in zip(names, gradients, exact_gradients, strict=True)},
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


def _largest_difference(outputs: torch.Tensor, reference: torch.Tensor) -> float:
    probs, exact = (torch.softmax(logits.double(), dim=-1).mean(dim=0) for logits in (outputs, reference))
    return as_error((probs - exact).abs().max())
