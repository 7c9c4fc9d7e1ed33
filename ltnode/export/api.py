"""``export_model``: a trained model as one file, compared with the library before it is kept."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ltnode import files as atomic
from ltnode.checks import checked_count
from ltnode.data import Normalisation
from ltnode.errors import CheckpointError, InputError, unknown_name
from ltnode.export import onnx_format, torch_format
from ltnode.export.metadata import description
from ltnode.export.program import Branch, DeployedModel, Grid, InputType, Preparation, exportable_networks, make_plan
from ltnode.export.verification import Agreement, ExportError, compare, drawn_inputs
from ltnode.models import Model
from ltnode.typing import Tensor

Format = Literal["onnx", "torch"]
SUFFIX: Mapping[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
_EXAMPLES = 5
"""Inputs to trace with: more than one, since torch reads a batch of 1 as a constant."""


@dataclass(frozen=True)
class Exported:
    """A file that was kept.

    Attributes:
        path: Where it is.
        format: "onnx" or "torch".
        size: In bytes.
        agreement: How far it is from the library.
        metadata: What the file says about itself.
    """

    path: Path
    format: Format
    size: int
    agreement: Agreement
    metadata: Mapping[str, str]


def export_model(
    model: Model,
    path: str | Path,
    format: Format = "onnx",
    *,
    shape: Sequence[int] | None = None,
    samples: int = 10,
    grid: Grid = "stored",
    normalise: Normalisation | None = None,
    input_type: InputType = "float32",
    class_names: Sequence[str] | None = None,
    operating_point: Mapping[str, Any] | None = None,
    inputs: Tensor | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
    opset: int = onnx_format.OPSET,
) -> Exported:
    """Write a model as one file that maps a batch of any size to predictions with their uncertainty.

    The end-times are the posterior's quantiles at ``(s - 1/2) / S``, as in ``model.predict``; where every input has its own
    posterior they are computed inside the file. Outputs: see `ltnode.export.program.DeployedModel`. The file is compared with
    the library on 100 inputs, in batches of 1, 64 and 35, and written only if it agrees.

    Args:
        model: A model with an end-time, or an ensemble of such.
        path: The file; its folder must exist. An earlier file is replaced at once, or stays if the export fails.
        format: ``"onnx"``, or ``"torch"`` for a torch.export program (.pt2).
        shape: Of one input, (D,) or (C, H, W); by default what the model was built for.
        samples: Number of end-times S. A fixed end-time has one; an ensemble has its networks.
        grid: ``"stored"``: the model's grid; ``"adaptive"``: steps of every input's own, in a loop inside the file; a number:
            so many equal steps. Fixed steps cannot be refined inside the file: the output ``error_ratio`` is 1 or more where
            they miss the model's tolerance.
        normalise: Applied inside the file, which then takes raw values; None for a file that takes network inputs.
        input_type: ``"uint8"`` for a file that takes pixels 0..255.
        class_names: Noted in the file.
        operating_point: Thresholds, noted in the file.
        inputs: Raw inputs to compare on instead of drawn ones, (N, *shape), at least 2.
        tolerance: Largest difference from the library in any output, in units of ``max(1, |output|)``.
        seed: Of drawn inputs.
        opset: Version of the ONNX operators.

    Returns:
        Where the file is, its size, and how far it is from the library.

    Raises:
        InputError: The model cannot be exported, or an argument is impossible.
        ExportError: A part of the model cannot be traced, or the file disagrees with the library; nothing is written.
        MissingExtraError: ONNX is not installed.
    """
    if format not in get_args(Format):
        raise InputError(unknown_name("format", format, get_args(Format)))
    target = _checked_path(path)
    samples, grid = checked_count("samples", samples), _checked_grid(grid)
    if input_type not in get_args(InputType):
        raise InputError(unknown_name("type of input", input_type, get_args(InputType)))
    exportable_networks(model)  # before anything is copied
    if format == "onnx":
        onnx_format.require_onnx()
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    networks = exportable_networks(model)
    shape = _checked_shape(model, shape)
    if normalise is not None and len(normalise.mean) != shape[0]:
        raise InputError(f"normalise has {len(normalise.mean)} entries for inputs of shape {shape}: one per channel or feature")
    raw = drawn_inputs(shape, normalise, input_type, seed) if inputs is None else _checked_inputs(inputs, shape, input_type)

    prepare = Preparation(normalise, input_type, len(shape) + 1)
    branches = [Branch(network, make_plan(network, samples, grid, prepare(raw))) for network in networks]
    deployed = DeployedModel(prepare, branches).eval().requires_grad_(False)
    metadata = description(model, deployed, grid, shape, normalise, class_names, operating_point)

    traced = torch_format.traced_program(deployed, raw[:_EXAMPLES])
    if format == "onnx":
        metadata["opset"] = str(opset)
        proto = onnx_format.onnx_model(traced, raw[:_EXAMPLES], list(deployed(raw[:2])), opset)
        program = onnx_format.onnx_program(proto.SerializeToString())
    else:
        program = torch_format.torch_program(torch_format.torch_file(traced, metadata))
    members = sum(branch.plan.samples for branch in branches)
    agreement = compare(program, deployed, model, raw, members, grid == "stored")
    if not agreement.difference <= tolerance:
        raise ExportError(
            f"the exported model differs from the library by {agreement.difference:.4g} on {agreement.inputs} inputs, more than "
            f"the tolerance {tolerance:g}: nothing was written. Allow more with tolerance=..., or try another grid"
        )
    metadata |= {
        "tolerance": f"{tolerance:g}",
        "difference": f"{agreement.difference:.3g}",
        "verified_inputs": str(agreement.inputs),
        "flagged_share": f"{agreement.flagged:.4g}",
        "difference_from_predict": f"{agreement.from_predict:.3g}",
    }
    content = onnx_format.with_metadata(proto, metadata) if format == "onnx" else torch_format.torch_file(traced, metadata)
    try:
        atomic.write_bytes(target, content)
    except CheckpointError as error:
        raise ExportError(f"could not write {target}: {error.__cause__}") from error
    return Exported(target, format, len(content), agreement, metadata)


def _checked_path(path: str | Path) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else f"cannot be written: there is no folder {target.parent}"
        raise InputError(f"{target} {what}; give the name of a file in a folder that exists")
    return target


def _checked_grid(grid: Grid) -> Grid:
    if grid in ("stored", "adaptive") or (isinstance(grid, int) and not isinstance(grid, bool) and grid >= 1):
        return grid
    raise InputError(f"grid must be 'stored', 'adaptive' or a number of equal steps, not {grid!r}")


def _checked_shape(model: Model, shape: Sequence[int] | None) -> tuple[int, ...]:
    if shape is None:
        if model.spec is None:
            raise InputError("the model was not made by ltnode.build, so its input is not known: give shape=(D,) or (C, H, W)")
        shape = model.spec["input"]["shape"]
    chosen = tuple(shape)
    if not chosen or not all(isinstance(n, int) and n >= 1 for n in chosen):
        raise InputError(f"shape must hold the sizes of one input, (D,) or (C, H, W), not {shape!r}")
    return chosen


def _checked_inputs(inputs: Tensor, shape: tuple[int, ...], input_type: InputType) -> Tensor:
    wanted = torch.uint8 if input_type == "uint8" else torch.float32
    if tuple(inputs.shape[1:]) != shape or len(inputs) < 2:
        raise InputError(
            f"inputs to compare on must have shape (N, {', '.join(map(str, shape))}), N >= 2, not {tuple(inputs.shape)}"
        )
    if inputs.dtype != wanted:
        raise InputError(f"inputs to compare on must be {wanted} like those of the file, not {inputs.dtype}")
    return inputs.detach().cpu()
