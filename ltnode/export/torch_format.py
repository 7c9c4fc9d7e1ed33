"""torch.export programs: traced here, saved as .pt2 files that load without ltnode."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import torch

from ltnode.export.onnx_format import last_line
from ltnode.export.program import DeployedModel
from ltnode.export.verification import ExportError, Program
from ltnode.typing import Tensor

METADATA = "ltnode.json"
"""Name of the file inside the archive that holds the metadata."""


def traced_program(deployed: DeployedModel, example: Tensor) -> torch.export.ExportedProgram:
    """The module as a graph with a symbolic batch size.

    Raises:
        ExportError: A part of the model cannot be traced, with torch's reason.
    """
    batch = {0: torch.export.Dim("batch")}
    try:
        with torch.no_grad():
            program = torch.export.export(deployed, (example,), dynamic_shapes=(batch,), strict=False)
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace this model: {last_line(error)}. Stem, field, head and encoder must not read values of "
            "tensors in Python, nor depend on the size of the batch"
        ) from error
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # names of source files
    return program


def torch_file(program: torch.export.ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """The bytes of the file."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: json.dumps(dict(metadata), indent=2, sort_keys=True)})
    return buffer.getvalue()


def torch_program(content: bytes) -> Program:
    """The file loaded again."""
    module = torch.export.load(io.BytesIO(content)).module()

    def run(x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            outputs: dict[str, Tensor] = module(x)
        return outputs

    return run
