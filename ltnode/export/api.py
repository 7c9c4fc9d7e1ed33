"""``export_model``: write a trained model as one file, after comparing the file with the library."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ltnode import files
from ltnode.checks import checked_count
from ltnode.data import Normalisation
from ltnode.errors import CheckpointError, InputError, unknown_name
from ltnode.export import onnx_format, torch_format
from ltnode.export.metadata import description
from ltnode.export.program import DeployedModel, Grid, InputType, exportable_networks
from ltnode.export.table_encoding import TableEncoding
from ltnode.export.verification import Agreement, ExportError, checked_inputs, compare, drawn_inputs, rows_to_compare
from ltnode.models import Model
from ltnode.tables import Schema
from ltnode.trained import TrainedModel
from ltnode.typing import Tensor

Format = Literal["onnx", "torch"]
SUFFIX: Mapping[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
_EXAMPLES = 5
"""Number of inputs to trace with: more than one, since torch treats a batch of 1 as a constant."""


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: Path of the file.
        format: "onnx" or "torch".
        size: Size in bytes.
        agreement: Difference between the file and the library.
        metadata: Description that the file contains.
    """

    path: Path
    format: Format
    size: int
    agreement: Agreement
    metadata: Mapping[str, str]


def export_model(
    model: Model | TrainedModel | str | Path,
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
    schema: Schema | None = None,
) -> Exported:
    """Write a model as one file that maps a batch of any size to predictions with their uncertainty.

    The end-times are the posterior's quantiles at ``(s - 1/2) / S``, as in ``model.predict``; if every input has its own
    posterior, they are computed inside the file. `ltnode.export.program.DeployedModel` describes the outputs. The file is
    compared with the library on 100 inputs, in batches of 1, 64 and 35, and written only if they agree.

    Args:
        model: A model with an end-time, or an ensemble of such models. A `TrainedModel` or a run folder also provides ``shape``,
            ``normalise``, ``class_names``, ``operating_point`` and ``schema``.
        path: Path of the file; its folder must exist. An existing file is replaced atomically, and kept if the export fails.
        format: ``"onnx"``, or ``"torch"`` for a torch.export program (.pt2).
        shape: Shape of one input, (D,) or (C, H, W); by default the shape that the model was built for.
        samples: Number of end-times S; 1 for a fixed end-time, and per network for an ensemble.
        grid: ``"stored"``: the prediction grid of the model; ``"adaptive"``: per-sample adaptive steps, in a loop inside the
            file; a number: this many equal steps. Fixed steps cannot be refined inside the file: the output ``error_ratio`` is 1
            or more where they miss the model's tolerance.
        normalise: Normalisation applied inside the file, which then takes raw values; None for a file that takes network inputs.
        input_type: ``"uint8"`` for a file that takes pixels in 0..255.
        class_names: Names of the classes, stored in the metadata.
        operating_point: Thresholds, stored in the metadata.
        inputs: (N, *shape) raw inputs to compare on, at least 2; by default they are drawn at random.
        tolerance: Largest difference from the library in any output, in units of ``max(1, |output|)``.
        seed: Seed of the drawn inputs.
        opset: Version of the ONNX operators.
        schema: Columns of a table, whose rows are encoded inside the file; see `ltnode.export.table_encoding` for the numbers
            that the file takes. ``inputs`` are then such numbers in float64.

    Returns:
        The path of the file, its size, and its difference from the library.

    Raises:
        InputError: The model cannot be exported, or an argument is invalid.
        ExportError: A part of the model cannot be traced, or the file disagrees with the library; nothing is written.
        MissingExtraError: ONNX is not installed.
    """
    if format not in get_args(Format):
        raise InputError(unknown_name("format", format, get_args(Format)))
    target = _checked_path(path)
    samples, grid = checked_count("samples", samples), _checked_grid(grid)
    if input_type not in get_args(InputType):
        raise InputError(unknown_name("type of input", input_type, get_args(InputType)))
    if not isinstance(model, Model):
        trained = TrainedModel.of(model, device="cpu")
        model, shape, normalise = trained.model, shape or trained.shape, normalise or trained.normalise
        class_names = class_names or trained.class_names or None
        point = trained.operating_point
        operating_point = operating_point or (None if point is None else asdict(point))
        schema = schema or trained.schema
    exportable_networks(model)  # refuse a model before it is copied
    if format == "onnx":
        onnx_format.require_onnx()
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    shape = _checked_shape(model, shape)
    if normalise is not None and len(normalise.mean) != shape[0]:
        raise InputError(f"normalise has {len(normalise.mean)} entries, but inputs of shape {shape} need {shape[0]}")
    if schema is not None:
        input_type = _type_of_rows(input_type)
        raw = rows_to_compare(schema, seed) if inputs is None else checked_inputs(inputs, (len(schema.columns),), input_type)
    else:
        raw = drawn_inputs(shape, normalise, input_type, seed) if inputs is None else checked_inputs(inputs, shape, input_type)
    encoding = None if schema is None else TableEncoding(schema)
    deployed = DeployedModel(model, samples, grid, raw, normalise, input_type, encoding)
    metadata = description(model, deployed, grid, shape, normalise, class_names, operating_point, schema)
    traced = torch_format.traced_program(deployed, raw[:_EXAMPLES])
    if format == "onnx":
        metadata["opset"] = str(opset)
        program, to_bytes = onnx_format.onnx_export(traced, raw[:_EXAMPLES], list(deployed(raw[:2])), opset)
    else:
        program, to_bytes = torch_format.torch_export(traced)
    agreement = compare(program, deployed, model, raw, grid == "stored")
    agreement.require(tolerance)
    content = to_bytes(metadata := {**metadata, "tolerance": f"{tolerance:g}", **agreement.facts()})
    try:
        files.write_bytes(target, content)
    except CheckpointError as error:
        raise ExportError(f"could not write {target}: {error.__cause__}") from error
    return Exported(target, format, len(content), agreement, metadata)


def _type_of_rows(input_type: InputType) -> InputType:
    if input_type == "uint8":
        raise InputError("uint8 is for pixels, but the model takes the rows of a table")
    return "float64"


def _checked_path(path: str | Path) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        reason = "is a folder" if target.is_dir() else f"cannot be written: there is no folder {target.parent}"
        raise InputError(f"{target} {reason}; give the name of a file in an existing folder")
    return target


def _checked_grid(grid: Grid) -> Grid:
    if grid in ("stored", "adaptive") or (isinstance(grid, int) and not isinstance(grid, bool) and grid >= 1):
        return grid
    raise InputError(f"grid must be 'stored', 'adaptive' or a number of equal steps, not {grid!r}")


def _checked_shape(model: Model, shape: Sequence[int] | None) -> tuple[int, ...]:
    if shape is None:
        if model.spec is None:
            raise InputError("the model was not made by ltnode.build, so its inputs are unknown: give shape=(D,) or (C, H, W)")
        shape = model.spec["input"]["shape"]
    sizes = tuple(shape)
    if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
        raise InputError(f"shape must hold the sizes of one input, (D,) or (C, H, W), not {shape!r}")
    return sizes
