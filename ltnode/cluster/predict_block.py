"""One block of a batch prediction as a task: read, predict, write one Parquet file that appears only when it is whole."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode import files
from ltnode.allocator import keep_memory
from ltnode.cluster.blocks import Block, BlockInputs, read_block
from ltnode.errors import LTNodeError
from ltnode.tables.parquet_rows import require_parquet
from ltnode.trained import TrainedModel
from ltnode.trained.columns import Columns, prediction_columns
from ltnode.trained.model import BATCH
from ltnode.typing import Tensor

FUNCTION = "ltnode.cluster.predict_block:predict_block"
_VECTORS = 4096
"""Vectors in one solve."""
_IMAGES = 512
"""Most images in one solve."""
_PIXELS = 1 << 20
"""Values of the images in one solve, unless `TrainedModel.rows` takes more: small images are faster in larger batches."""


def predict_block(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Predict one block, unless its file is there already.

    Args:
        arguments: ``run``, ``block``, ``output``: folder of the output; ``samples``, ``device``, ``threads``, ``columns``,
            ``false_alarm_rate`` or None, and ``call``, which is different whenever the run may hold another model.

    Returns:
        ``rows``, and ``bad``: the number of inputs that could not be used.
    """
    block, target = Block.of(arguments["block"]), Path(arguments["output"]) / arguments["block"]["name"]
    if target.exists():
        return {"rows": block.rows, "bad": 0}
    keep_memory()
    torch.set_num_threads(arguments["threads"])
    trained = _opened(*(arguments[key] for key in ("run", "device", "false_alarm_rate", "call")))
    inputs = read_block(block, trained, arguments["columns"])
    table = block_table(trained, inputs, arguments["samples"])
    bad = table.num_rows - table.column("error").null_count
    content = io.BytesIO()
    # A dictionary of numbers that are nearly all different would be built in vain.
    repeated = [name for name, kind in zip(table.column_names, table.schema.types, strict=True) if not _is_number(kind)]
    require_parquet("cluster", "batch prediction").write_table(table, content, use_dictionary=repeated)
    files.write_bytes(target, content.getvalue(), owner=f"{os.getpid()}-")  # a second attempt may run beside a lost one
    return {"rows": table.num_rows, "bad": bad}


def block_table(trained: TrainedModel, inputs: BlockInputs, samples: int) -> Any:
    """Predict the inputs of a block; returns an Arrow table with one row per input, in order.

    Inputs that cannot be used have the reason in the column ``error``, and nothing in the columns of the prediction.
    """
    import pyarrow as arrow

    predictor, size = _Predictor(trained, samples, dict(inputs.errors)), batch_size(trained)
    for start in range(0, len(inputs.raw), size):
        predictor.predict(inputs.usable[start : start + size], inputs.raw[start : start + size])
    n = len(inputs.names)
    table = {
        "input": arrow.array(inputs.names).dictionary_encode(),
        "row": arrow.array(inputs.rows),
        "error": _texts(predictor.errors, n),
    }
    taken = np.full(n, -1, dtype=np.int64)
    taken[predictor.positions()] = np.arange(len(predictor.positions()))
    whole = bool((taken == np.arange(n)).all())
    for name in predictor.parts[0] if predictor.parts else ():
        column = arrow.array(np.concatenate([part[name] for part in predictor.parts]))
        table[name] = column if whole else column.take(arrow.array(taken, mask=taken < 0))
    return arrow.table(table)


def batch_size(trained: TrainedModel) -> int:
    """Number of inputs in one solve."""
    return min(_IMAGES, max(BATCH, _PIXELS // math.prod(trained.shape))) if trained.is_image else _VECTORS


def _texts(values: Mapping[int, str], n: int) -> Any:
    """A column of texts at some positions, and of nothing elsewhere."""
    import pyarrow as arrow

    kind = arrow.string()
    return arrow.array([values.get(position) for position in range(n)], kind) if values else arrow.nulls(n, kind)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


class _Predictor:
    """Predicts batches; where one fails, the inputs that are to blame are found by halving it."""

    def __init__(self, trained: TrainedModel, samples: int, errors: dict[int, str]) -> None:
        self._trained, self._samples, self.errors = trained, samples, errors
        self.parts: list[Columns] = []
        self._done: list[NDArray[np.int64]] = []

    def predict(self, positions: NDArray[np.int64], raw: Tensor) -> None:
        try:
            x = self._trained.prepare(raw)
            columns = prediction_columns(self._trained, self._trained.predict_inputs(x, self._samples), x)
        except LTNodeError as error:
            if len(raw) == 1:
                self.errors[int(positions[0])] = str(error)
                return
            half = len(raw) // 2
            self.predict(positions[:half], raw[:half])
            self.predict(positions[half:], raw[half:])
            return
        self.parts.append(columns)
        self._done.append(positions)

    def positions(self) -> NDArray[np.int64]:
        """Where the predicted inputs are in the block, in the order of the parts."""
        return np.concatenate(self._done) if self._done else np.empty(0, np.int64)


@lru_cache(maxsize=1)
def _opened(run: str, device: str, rate: float | None, call: str) -> TrainedModel:
    """The model, which a worker loads once for all blocks of a call."""
    return TrainedModel.open(run, device).with_false_alarm_rate(rate)
