"""ONNX files: written by torch's exporter, stripped of information about the machine, run by onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ltnode.errors import require
from ltnode.export.verification import ExportError, Program, Runnable
from ltnode.typing import Tensor

OPSET = 20
INPUT = "x"
_SMALLEST_BOUND = 1e-30
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def require_onnx() -> None:
    """Require the packages of the extra ``onnx``.

    Raises:
        MissingExtraError: A package is not installed; the message names the extra.
    """
    require({name: name for name in ("onnx", "onnxscript", "onnxruntime")}, "onnx", "exporting to ONNX")


def onnx_export(program: torch.export.ExportedProgram, example: Tensor, outputs: Sequence[str], opset: int) -> Runnable:
    """Convert a traced program to ONNX, with a symbolic batch size and without information about the machine.

    Raises:
        ExportError: torch's exporter or onnxruntime refuses the model; the message contains the reason.
    """
    _raise_floors(program)
    with _quiet(), torch.no_grad():
        try:
            exported = torch.onnx.export(
                program,
                (example,),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT],
                output_names=list(outputs),
                custom_translation_table=_hyperbolic(),
                verbose=False,
            )
        except Exception as error:
            raise ExportError(f"torch's ONNX exporter refuses this model: {last_line(error)}") from error
    assert exported is not None
    proto = exported.model_proto
    _strip_origin(proto)
    return _session(proto.SerializeToString()), partial(_with_metadata, proto)


def _with_metadata(proto: Any, metadata: Mapping[str, str]) -> bytes:
    import onnx

    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {f"ltnode.{name}": value for name, value in metadata.items()})
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))


def _session(content: bytes) -> Program:
    """Run the file by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(f"onnxruntime refuses the exported model: {last_line(error)}") from error
    names = [output.name for output in session.get_outputs()]

    def run(x: Tensor) -> dict[str, Tensor]:
        values = session.run(None, {INPUT: x.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return run


def last_line(error: BaseException) -> str:
    """Type and last line of the root cause of an error that another library raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _hyperbolic() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Translations of sinh and asinh to exp and log: onnxruntime has them for float32 only, and quantiles are float64."""
    from onnxscript import opset18

    op: Any = opset18

    def sinh(x: Any) -> Any:
        return op.Div(op.Sub(op.Exp(x), op.Exp(op.Neg(x))), op.CastLike(op.Constant(value_float=2.0), x))

    def asinh(x: Any) -> Any:
        size = op.Abs(x)
        root = op.Sqrt(op.Add(op.Mul(size, size), op.CastLike(op.Constant(value_float=1.0), x)))
        return op.Mul(op.Sign(x), op.Log(op.Add(size, root)))

    return {torch.ops.aten.sinh.default: sinh, torch.ops.aten.asinh.default: asinh}


def _raise_floors(program: torch.export.ExportedProgram) -> None:
    """Raise lower bounds that underflow in float32: the exporter writes every bound as float32, and 0 would be no bound."""
    for node in graph_nodes(program):
        if node.target is torch.ops.aten.clamp_min.default and 0.0 < node.args[1] < _SMALLEST_BOUND:
            node.update_arg(1, _SMALLEST_BOUND)


def graph_nodes(program: torch.export.ExportedProgram) -> Iterator[Any]:
    """The nodes of a traced program and of the bodies of its loops."""
    for module in program.graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def _strip_origin(proto: Any) -> None:
    """Delete the file names, stack traces and module paths that the exporter records, and unused tensors."""
    for graph in _graphs(proto.graph):
        del graph.metadata_props[:]
        graph.doc_string = ""
        for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
            del item.metadata_props[:]
            item.doc_string = ""
    for function in proto.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
    used = {name for graph in _graphs(proto.graph) for node in graph.node for name in node.input}
    used |= {output.name for graph in _graphs(proto.graph) for output in graph.output}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.doc_string = ""


def _graphs(graph: Any) -> Iterator[Any]:
    """An ONNX graph and the bodies of its loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages about packages that are not needed."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
