"""An exported program beside the library, on inputs of several batch sizes, before its file is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ltnode.data import Normalisation
from ltnode.errors import LTNodeError
from ltnode.export.program import DeployedModel, InputType, named_outputs
from ltnode.models import Model, Prediction
from ltnode.ode import SolverError, odesolve
from ltnode.typing import Float, Tensor

Program = Callable[[Tensor], Mapping[str, Tensor]]
"""Raw inputs to named outputs: what a runtime makes of the exported file."""

BATCH_SIZES = (1, 64)
N_INPUTS = 100
_NOISIEST = 0.3


class ExportError(LTNodeError):
    """A model could not be exported, or its exported form does not agree with the library."""


@dataclass(frozen=True)
class Agreement:
    """How far an exported program is from the library.

    Attributes:
        inputs: Number of inputs compared.
        difference: Largest absolute difference of any output from the library on the same steps; for regression in units of
            ``max(1, |output|)``. On a stored grid this is ``model.predict`` for every input whose error check passes.
        flagged: Share of the inputs with ``error_ratio >= 1``: their steps miss the tolerance, and ``model.predict`` solves
            them again on finer ones.
        from_predict: Largest difference of the averaged prediction from ``model.predict`` over all inputs, flagged ones too.
    """

    inputs: int
    difference: float
    flagged: float
    from_predict: float


def drawn_inputs(
    shape: Sequence[int], normalise: Normalisation | None, input_type: InputType, seed: int, n: int = N_INPUTS
) -> Tensor:
    """Inputs to verify with: smooth random pictures with noise of growing strength on [0, 1], or standard normal vectors.

    They are raw inputs of the file: de-normalised vectors, or pixels; without a normalisation, standardised pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    if len(shape) != 3:
        x = torch.randn(n, *shape, generator=generator)
        if normalise is None:
            return x
        axes = (1, -1, *[1] * (len(shape) - 1))
        return x * torch.tensor(normalise.std).reshape(axes) + torch.tensor(normalise.mean).reshape(axes)
    coarse = torch.rand(n, shape[0], 4, 4, generator=generator)
    smooth = functional.interpolate(coarse, size=tuple(shape[1:]), mode="bilinear", align_corners=True)
    strength = torch.linspace(0.0, _NOISIEST, n).reshape(-1, 1, 1, 1)
    x = (smooth + strength * torch.randn(n, *shape, generator=generator)).clamp(0.0, 1.0)
    if input_type == "uint8":
        return (x * 255).round().to(torch.uint8)
    return x if normalise is not None else (x - 0.5) / 0.25


def library_on_plan(deployed: DeployedModel, x: Float[Tensor, "B *shape"]) -> tuple[dict[str, Tensor], Float[Tensor, " B"]]:
    """The library's own outputs on the steps of the exported program, and each input's error ratio.

    Args:
        deployed: Gives the networks and their plans.
        x: Network inputs.
    """
    outputs, times, ratios = [], [], []
    with torch.no_grad():
        for network, plan in deployed.plans():
            o = network.solver
            own = network.prediction_times(x, plan.samples)
            grid = None if plan.edges is None else list(plan.edges)
            found = odesolve(
                network.field, network.initial_state(x), own, o.rtol, o.atol, o.method,
                grid=grid, control="sample", max_steps=o.max_steps,
            )  # fmt: skip
            norms = found.error_norms
            if own.ndim == 2 and found.grid.ndim == 1:
                norms = torch.where(found.grid[:-1, None] < own.double().amax(dim=0), norms, torch.zeros_like(norms))
            outputs.append(network.outputs_at(found.states))
            times.append(own)
            ratios.append(norms.amax(dim=0))
    prediction = Prediction(deployed.task, torch.cat(outputs), torch.cat(times), noise=deployed.noise)
    return {**named_outputs(prediction), "times": prediction.times}, torch.stack(ratios).amax(dim=0)


def compare(program: Program, deployed: DeployedModel, model: Model, raw: Tensor, samples: int, stored: bool) -> Agreement:
    """Put inputs through an exported program and through the library.

    Args:
        program: The exported program, run by its own runtime.
        deployed: What it was exported from.
        model: The model, for ``model.predict``.
        raw: Raw inputs; compared as a batch of 1, a batch of 64, and the rest.
        samples: Number of members.
        stored: The steps are those that ``model.predict`` takes first, so passing inputs must agree with it.

    Raises:
        ExportError: The library itself cannot solve these inputs on these steps.
    """
    average = "probs" if deployed.task == "classification" else "mean"
    difference = from_predict = 0.0
    flagged = 0
    for batch in _batches(raw):
        got = program(batch)
        x = deployed.prepare(batch)
        try:
            expected, ratio = library_on_plan(deployed, x)
        except SolverError as error:
            raise ExportError(f"the library cannot solve the inputs to verify with on these steps: {error}") from error
        full = named_outputs(model.predict(x, samples))[average]
        passes = ratio < 1.0
        flagged += int((~passes).sum())
        difference = max(difference, *(_largest(got[name], value) for name, value in expected.items()))
        from_predict = max(from_predict, _largest(got[average], full))
        if stored and bool(passes.any()):
            difference = max(difference, _largest(got[average][passes], full[passes]))
    return Agreement(len(raw), difference, flagged / len(raw), from_predict)


def _batches(raw: Tensor) -> list[Tensor]:
    sizes, rest = [], len(raw)
    for size in (*BATCH_SIZES, rest):
        if rest > 0:
            sizes.append(min(size, rest))
            rest -= sizes[-1]
    return list(raw.split(sizes))


def _largest(got: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the value where that is above 1; infinite where a number is missing."""
    if got.shape != expected.shape:
        raise ExportError(f"an output has shape {tuple(got.shape)}, and the library's {tuple(expected.shape)}")
    distance = (got - expected).abs() / expected.abs().clamp_min(1.0)
    return float(distance.nan_to_num(nan=float("inf")).max()) if distance.numel() else 0.0
