"""torch.export programs: traced here, and saved as .pt2 files that load without ltnode."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import partial

import torch

from ltnode.export.onnx_format import graph_nodes, last_line
from ltnode.export.program import DeployedModel
from ltnode.export.verification import ExportError, Program, Runnable
from ltnode.typing import Tensor

METADATA = "ltnode.json"
"""Name of the file inside the archive that holds the metadata."""


def traced_program(deployed: DeployedModel, example: Tensor) -> torch.export.ExportedProgram:
    """Trace the module as a graph with a symbolic batch size.

    Raises:
        ExportError: A part of the model cannot be traced; the message contains torch's reason.
    """
    batch = {0: torch.export.Dim("batch")}
    try:
        with torch.no_grad():
            program = torch.export.export(deployed, (example,), dynamic_shapes=(batch,), strict=False)
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace this model: {last_line(error)}. Stem, field, head and encoder must neither read tensor "
            "values in Python nor depend on the batch size"
        ) from error
    for node in graph_nodes(program):
        node.meta.pop("stack_trace", None)  # it contains names of source files
    return program


def torch_export(program: torch.export.ExportedProgram) -> Runnable:
    """The traced program as it runs after saving and loading, and the function that makes the file."""
    return torch_program(_file(program, {})), partial(_file, program)


def _file(program: torch.export.ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: json.dumps(dict(metadata), indent=2, sort_keys=True)})
    return buffer.getvalue()


def torch_program(content: bytes) -> Program:
    """Load the content of a file."""
    module = torch.export.load(io.BytesIO(content)).module()

    def run(x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            outputs: dict[str, Tensor] = module(x)
        return outputs

    return run
