"""Compare an exported program with the library, on inputs in batches of several sizes, before its file is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ltnode.data import Normalisation
from ltnode.errors import InputError, LTNodeError
from ltnode.export.program import DeployedModel, InputType, named_outputs
from ltnode.export.table_encoding import TableEncoding, check_encoding, column_values, drawn_rows
from ltnode.models import Model
from ltnode.models.familiarity import Ranks
from ltnode.ode import SolverError, odesolve
from ltnode.tables import Schema
from ltnode.typing import Float, Tensor

Program = Callable[[Tensor], Mapping[str, Tensor]]
"""Raw inputs -> named outputs: the exported file, run by its runtime."""
Runnable = tuple[Program, Callable[[Mapping[str, str]], bytes]]
"""A program, and the function that makes its file with some metadata."""

BATCH_SIZES = (1, 64)
N_INPUTS = 100
_NOISIEST = 0.3
DISTANCE_TOLERANCE = 1e-4
"""Largest difference of the distance, in units of ``max(1, |distance|)``."""
_RANKED = ("distance", "familiarity")
_IN_UNITS = ("mean", "std", "noise_std", "member_means")
"""Outputs of a regression, in the units of its target."""
_ROUNDED = 0.1
"""A tolerance of 1e-5 of this share of a value is ten times the rounding of float32."""


class ExportError(LTNodeError):
    """A model could not be exported, or the exported program disagrees with the library."""


@dataclass(frozen=True)
class Agreement:
    """Difference between an exported program and the library.

    Attributes:
        inputs: Number of inputs that were compared.
        difference: Largest absolute difference of any output from the library on the same steps; for regression in units of
            ``max(1, |output|)``, with the scale of the targets in place of 1 where the model knows it. On a stored grid the
            library is ``model.predict`` for every input that passes the error check.
        flagged: Share of the inputs with ``error_ratio >= 1``: their steps miss the tolerance, and ``model.predict`` solves
            them again with finer steps.
        from_predict: Largest difference of the averaged prediction from ``model.predict``, over flagged inputs too.
        distance: Largest difference of the distance from that of the library, in units of ``max(1, |distance|)``; 0 without one.
        ranks: Largest difference of the familiarity that a distance within `DISTANCE_TOLERANCE` does not explain; 0 without one.
    """

    inputs: int
    difference: float
    flagged: float
    from_predict: float
    distance: float = 0.0
    ranks: float = 0.0

    def require(self, tolerance: float) -> None:
        """Refuse a program that differs by more than the tolerance.

        Raises:
            ExportError: It does.
        """
        if not self.difference <= tolerance:
            raise ExportError(
                f"the exported model differs from the library by {self.difference:.4g} on {self.inputs} inputs, more than the "
                f"tolerance {tolerance:g}: nothing was written. Allow more with tolerance=..., or try another grid"
            )
        if not (self.distance <= DISTANCE_TOLERANCE and self.ranks == 0):
            raise ExportError(
                f"the distance in the exported model differs from that of the library by {self.distance:.4g} relative, and the "
                f"familiarity by {self.ranks:.4g} more than ranks within {DISTANCE_TOLERANCE:g} do: nothing was written"
            )

    def facts(self) -> dict[str, str]:
        """Entries for the metadata of the file."""
        return {
            "difference": f"{self.difference:.3g}",
            "verified_inputs": str(self.inputs),
            "flagged_share": f"{self.flagged:.4g}",
            "difference_from_predict": f"{self.from_predict:.3g}",
            "difference_of_distance": f"{self.distance:.3g}",
        }


def drawn_inputs(
    shape: Sequence[int], normalise: Normalisation | None, input_type: InputType, seed: int, n: int = N_INPUTS
) -> Tensor:
    """Draw inputs to verify with: smooth random images in [0, 1] with noise of increasing strength, or standard normal vectors.

    They are raw inputs of the file: pixels or denormalised vectors; standardised pixels if the file does not normalise.
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


def rows_to_compare(schema: Schema, seed: int) -> Float[Tensor, "N K"]:
    """Draw rows of a table, and check that their encoding inside the file is that of the library.

    Returns:
        The numbers of their columns, as the file takes them.
    """
    rows = drawn_rows(schema, N_INPUTS, seed)
    check_encoding(TableEncoding(schema), schema, rows)
    return torch.from_numpy(column_values(schema, rows))


def checked_inputs(inputs: Tensor, shape: tuple[int, ...], input_type: InputType) -> Tensor:
    """Check the shape and the dtype of the user's inputs to verify with."""
    dtype = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64}[input_type]
    if tuple(inputs.shape[1:]) != shape or len(inputs) < 2:
        sizes = ", ".join(map(str, shape))
        raise InputError(f"inputs to compare on must have shape (N, {sizes}) with N >= 2, not {tuple(inputs.shape)}")
    if inputs.dtype != dtype:
        raise InputError(f"inputs to compare on must be {dtype}, like those of the file, not {inputs.dtype}")
    return inputs.detach().cpu()


def library_on_plan(deployed: DeployedModel, x: Float[Tensor, "B *shape"]) -> tuple[dict[str, Tensor], Float[Tensor, " B"]]:
    """Outputs of the library on the steps of the exported program, and the error ratio of each input.

    Args:
        deployed: The networks and their plans.
        x: Network inputs.
    """
    parts, ratios = [], []
    with torch.no_grad():
        for network, plan in deployed.plans():
            o = network.solver
            end_times = network.prediction_times(x, plan.samples)
            times = network.solved_times(end_times)
            grid = None if plan.edges is None else list(plan.edges)
            solution = odesolve(
                network.field, network.initial_state(x), times, o.rtol, o.atol, o.method,
                grid=grid, control="sample", max_steps=o.max_steps,
            )  # fmt: skip
            norms = solution.error_norms
            if times.ndim == 2 and solution.grid.ndim == 1:
                norms = torch.where(solution.grid[:-1, None] < times.double().amax(dim=0), norms, torch.zeros_like(norms))
            parts.append(network.members_at(solution.states, end_times, None))
            ratios.append(norms.amax(dim=0))
        prediction = deployed.answer(parts)
    return {**named_outputs(prediction), "times": prediction.times}, torch.stack(ratios).amax(dim=0)


def compare(program: Program, deployed: DeployedModel, model: Model, raw: Tensor, stored: bool) -> Agreement:
    """Run an exported program and the library on the same inputs.

    Args:
        program: The exported program, run by its runtime.
        deployed: The module that it was exported from.
        model: The model, for ``model.predict``.
        raw: Raw inputs; compared as a batch of 1, a batch of 64, and the rest.
        stored: Whether the steps are the first ones of ``model.predict``, so that inputs that pass the check must agree with it.

    Raises:
        ExportError: The library cannot solve these inputs with these steps.
    """
    samples = sum(plan.samples for _, plan in deployed.plans())
    average = "probs" if deployed.task == "classification" else "mean"
    unit = _unit(model)
    difference = from_predict = distance = ranks = 0.0
    flagged = 0
    for batch in _batches(raw):
        got = program(batch)
        x = deployed.prepare(batch)
        try:
            expected, ratio = library_on_plan(deployed, x)
        except SolverError as error:
            raise ExportError(f"the library cannot solve the inputs to verify with, using these steps: {error}") from error
        full = named_outputs(model.predict(x, samples))[average]
        passes = ratio < 1.0
        flagged += int((~passes).sum())
        units = {name: unit if name in _IN_UNITS else 1.0 for name in expected if name not in _RANKED}
        plain = [_largest(got[name], expected[name], size) for name, size in units.items()]
        difference = max(difference, *plain)
        if "distance" in expected:
            distance = max(distance, _largest(got["distance"], expected["distance"]))
        if "familiarity" in expected:
            ranks = max(ranks, _beyond_ranks(got["familiarity"], expected["distance"], deployed.ranks))
        from_predict = max(from_predict, _largest(got[average], full, unit))
        if stored and bool(passes.any()):
            difference = max(difference, _largest(got[average][passes], full[passes], unit))
    return Agreement(len(raw), difference, flagged / len(raw), from_predict, distance, ranks)


def _batches(raw: Tensor) -> list[Tensor]:
    sizes, rest = [], len(raw)
    for size in (*BATCH_SIZES, rest):
        if rest > 0:
            sizes.append(min(size, rest))
            rest -= sizes[-1]
    return list(raw.split(sizes))


def _beyond_ranks(got: Float[Tensor, " B"], distance: Float[Tensor, " B"], ranks: Ranks) -> float:
    """Largest difference of p-values from those of distances within the tolerance; infinite for NaN."""
    margin = DISTANCE_TOLERANCE * distance.abs().clamp_min(1.0)
    low, high = ranks(distance + margin), ranks(distance - margin)
    return float(torch.maximum(low - got, got - high).clamp_min(0.0).nan_to_num(nan=float("inf")).max())


def _unit(model: Model) -> float:
    """The scale of the targets of a regression, if the model knows it, else 1; float32 rounds values near a large mean."""
    scale = None if model.spec is None else model.spec["input"].get("target")
    return 1.0 if scale is None else scale[1] + _ROUNDED * abs(scale[0])


def _largest(got: Tensor, expected: Tensor, unit: float = 1.0) -> float:
    """Largest difference, relative to the value if that is above the unit; infinite for NaN."""
    if got.shape != expected.shape:
        raise ExportError(f"an output of the file has shape {tuple(got.shape)}, but that of the library {tuple(expected.shape)}")
    distance = (got - expected).abs() / expected.abs().clamp_min(unit)
    return float(distance.nan_to_num(nan=float("inf")).max()) if distance.numel() else 0.0
