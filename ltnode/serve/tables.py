"""Models of tables: their columns for a form, the rows of a request, and the effect of one column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.errors import InputError, unknown_name
from ltnode.serve import answers
from ltnode.serve.decoding import RawBatch
from ltnode.serve.requests import EffectRequest
from ltnode.tables import Column, Schema
from ltnode.tables.cells import FIRST_DAY, LAST_DAY
from ltnode.trained import TrainedModel
from ltnode.trained.rows import INTERVAL

_MARGIN = 0.1
"""Share of the range of the training rows by which the effect of a column is shown beyond both ends."""
_BAND = (0.05, 0.95)


def require_schema(trained: TrainedModel) -> Schema:
    """The schema of a model of tables.

    Raises:
        InputError: The model takes other inputs.
    """
    if trained.schema is None:
        kind = "images" if trained.is_image else f"vectors of {trained.shape[0]} numbers"
        raise InputError(f"{trained.name} takes {kind}, not the rows of a table: send inputs")
    return trained.schema


def describe_columns(trained: TrainedModel) -> list[answers.ColumnInfo] | None:
    """The columns for a form, with typical values; None for other models."""
    if trained.schema is None:
        return None
    return [
        answers.ColumnInfo(
            name=column.name,
            kind=column.kind,
            typical=_typical(column),
            low=_shown(column, column.low) if column.kind in ("number", "date") else None,
            high=_shown(column, column.high) if column.kind in ("number", "date") else None,
            categories=list(column.categories),
            missing=column.missing,
        )
        for column in trained.schema.columns
    ]


def _typical(column: Column) -> float | str | bool | None:
    if column.kind == "category":
        return column.categories[0] if column.categories else None
    return bool(column.fill >= 0.5) if column.kind == "boolean" else _shown(column, column.fill)


def _shown(column: Column, value: float) -> float | str:
    """A number with six digits, or a date in the format of the training table."""
    return column.date(value) if column.kind == "date" else float(f"{value:.6g}")


def decode_rows(rows: Sequence[Mapping[str, Any]], trained: TrainedModel) -> RawBatch:
    """Encode the rows of a request, each a mapping from columns to cells; null is a missing cell.

    Raises:
        InputError: A row has not all columns, or a cell is not of the kind of its column.
    """
    schema = require_schema(trained)
    for number, row in enumerate(rows):
        absent = [column.name for column in schema.columns if column.name not in row]
        if absent:
            raise InputError(f"rows[{number}] must have all columns, but {absent[0]!r} is missing; null is a missing cell")
    names = dict.fromkeys(name for row in rows for name in row)
    encoded = schema.encode({name: _cells([row.get(name) for row in rows]) for name in names})
    notes = [f"row {row + 1}: {note}" if len(rows) > 1 else note for row, told in encoded.row_notes.items() for note in told]
    return RawBatch(torch.from_numpy(encoded.x).float(), [*encoded.notes, *notes])


def _cells(values: Sequence[Any]) -> NDArray[Any]:
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    return cells


def check_effect(request: EffectRequest, trained: TrainedModel) -> Column:
    """The column whose effect is asked for.

    Raises:
        InputError: The model has no such column.
    """
    columns = {column.name: column for column in require_schema(trained).columns}
    if request.column not in columns:
        raise InputError(unknown_name("column", request.column[:80], columns))
    return columns[request.column]


def effect(trained: TrainedModel, column: Column, request: EffectRequest) -> answers.EffectAnswer:
    """Predictions of one row for many values of one column, with the other cells as they are.

    The curve of a regression is the mean, with its 90 % interval. That of a classifier is the probability of the class that it
    gives to the row, with the 5 and 95 % quantiles over the members.
    """
    values = _values(column, request.points)
    shown = [_label(column, value) for value in values]
    batch = decode_rows([request.row, *({**request.row, column.name: value} for value in values)], trained)
    prediction = trained.predict(batch.raw, request.samples).to(torch.float64, "cpu")
    if trained.task == "regression":
        assert trained.schema is not None
        what, mean = trained.schema.target.name, prediction.mean
        low, high = prediction.interval(INTERVAL)
    else:
        label = int(prediction.probs[0].argmax())
        what, mean = f"probability of {trained.class_names[label]}", prediction.probs[:, label]
        members = prediction.member_probs[:, :, label]
        low, high = (members.quantile(level, dim=0) for level in _BAND)
    return answers.EffectAnswer(
        model=trained.name,
        column=column.name,
        kind=column.kind,
        what=what,
        values=shown,
        mean=mean[1:].tolist(),
        low=low[1:].tolist(),
        high=high[1:].tolist(),
        familiarity=None if prediction.familiarity is None else prediction.familiarity[1:].tolist(),
    )


def _values(column: Column, points: int) -> list[Any]:
    """Cells of a column: all categories, both truth values, or numbers and dates over the range and beyond both ends."""
    if column.kind == "category":
        return list(column.categories)
    if column.kind == "boolean":
        return [False, True]
    margin = _MARGIN * (column.high - column.low)
    grid = np.linspace(column.low - margin, column.high + margin, points)
    if column.kind == "number":
        return grid.tolist()
    days = grid.clip(FIRST_DAY, LAST_DAY)
    return [(np.datetime64("1970-01-01") + np.timedelta64(math.floor(day * 86400), "s")).item() for day in days]


def _label(column: Column, value: Any) -> float | str | bool:
    if column.kind == "date":
        return str(value.date().isoformat())
    return value
