"""``ltnode export``: write a trained run as one file that runs without ltnode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import torch
import typer

from ltnode.cli import console
from ltnode.cli.run_folder import RunFolder
from ltnode.errors import InputError
from ltnode.export import Exported, export_model
from ltnode.export.api import SUFFIX, Format
from ltnode.export.table_encoding import column_values
from ltnode.hub import locate
from ltnode.tables import read_table
from ltnode.trained import TrainedModel
from ltnode.typing import Tensor

EXAMPLES = (
    "ltnode export lt-node-cifar10 --out cifar10.onnx",
    "ltnode export runs/x --format torch --grid adaptive --samples 20 --out x.pt2",
)


def export(
    run: RunFolder,
    format: Annotated[str, typer.Option(help="onnx or torch (a torch.export program).")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; by default ./RUN.onnx or ./RUN.pt2.")] = None,
    samples: Annotated[int, typer.Option(help="Number of end-times, at the quantiles of their posterior.", min=1)] = 10,
    grid: Annotated[str, typer.Option(help="Steps: stored (the model's grid), adaptive, or a number of equal steps.")] = "stored",
    uint8: Annotated[bool, typer.Option("--uint8", help="The file takes pixels 0..255 instead of 0..1.")] = False,
    inputs: Annotated[
        Path | None,
        typer.Option(help="File of inputs (.npy, .csv, an image) to compare on; by default random ones."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference from the library that is accepted.")] = 1e-5,
    seed: Annotated[int, typer.Option(help="Seed of the drawn inputs.", min=0)] = 0,
) -> None:
    """Export a trained run to ONNX or torch.export, compare the file with the library, and keep it if they agree.

    The file takes raw inputs in batches of any size and returns averaged probabilities, their uncertainty and all members.
    """
    if format not in get_args(Format):
        raise InputError(f"--format must be onnx or torch, not {format!r}")
    chosen = cast(Format, format)
    trained = TrainedModel.open(locate(run))
    file = out or Path(f"{trained.name}{SUFFIX[chosen]}")
    done = export_model(
        trained,
        file,
        chosen,
        samples=samples,
        grid=_grid(grid),
        input_type="uint8" if uint8 else "float32",
        inputs=None if inputs is None else _inputs(inputs, trained, uint8),
        tolerance=tolerance,
        seed=seed,
    )
    _report(done, trained)


def _grid(text: str) -> Literal["stored", "adaptive"] | int:
    if text in ("stored", "adaptive"):
        return cast(Literal["stored", "adaptive"], text)
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise InputError(f"--grid must be stored, adaptive, or a number of equal steps >= 1, not {text!r}")


def _inputs(file: Path, trained: TrainedModel, uint8: bool) -> Tensor:
    """Inputs from a file, in the dtype of the exported model."""
    if trained.schema is not None:
        return torch.from_numpy(column_values(trained.schema, read_table(file)))
    raw = trained.read(file).raw
    if uint8 and raw.is_floating_point():
        raw = (raw * 255).round().to(torch.uint8)
    elif not uint8:
        raw = raw.float() / 255 if raw.dtype == torch.uint8 else raw.float()
    return raw


def _report(done: Exported, trained: TrainedModel) -> None:
    facts = done.metadata
    members = f"{facts['samples']} end-time{'s' * (facts['samples'] != '1')} ({facts['end_time']})"
    opset = f", opset {facts['opset']}" if "opset" in facts else ""
    console.facts(
        {
            "file": f"{done.path} ({done.size / 1e6:.2f} MB, {done.format}{opset})",
            "model": f"{trained.name}: {facts['model']}, {members}, {facts['grid'].removesuffix(' steps')} steps",
            "input": facts["input"],
            **({"columns": ", ".join(column.name for column in trained.schema.columns)} if trained.schema else {}),
            "outputs": facts["outputs"],
            "difference": f"{done.agreement.difference:.1e} from the library on {done.agreement.inputs} inputs "
            f"(tolerance {facts['tolerance']})",
            "error check": f"{done.agreement.flagged:.0%} of these inputs have error_ratio >= 1; "
            f"largest difference from predict {done.agreement.from_predict:.1e}",
        }
    )
    if done.agreement.flagged > 0:
        console.say(
            "Where error_ratio is 1 or more, the fixed steps miss the model's tolerance, and ltnode predict uses finer steps; "
            "--grid adaptive does the same inside the file.",
            style="yellow",
        )
    runs = "onnxruntime" if done.format == "onnx" else "torch.export.load"
    console.say(f"Verified and kept: {done.path} runs with {runs}, without ltnode.")
