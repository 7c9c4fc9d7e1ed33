"""The encoding of table rows inside an exported file: one number per column becomes the features of that column.

A file has no text inputs. Numbers are themselves, booleans are 0 and 1, dates are days since 1970-01-01 in UTC, and a category is
its position in the list of categories of the schema, which the metadata of the file hold; any position after the list is a
category that is rare or was never seen. NaN is a missing cell in every column.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ltnode.errors import InputError
from ltnode.tables import Column, Schema, as_table, cells
from ltnode.tables.column import PERIODS
from ltnode.typing import Float, Tensor

_DIFFERENCE = 1e-5
_DESCRIPTIONS = {
    "number": "the number",
    "boolean": "0 or 1",
    "date": "days since 1970-01-01 in UTC",
    "category": "position in categories, from 0; their number for any other category",
}


class TableEncoding(nn.Module):
    """Maps the numbers of columns (B, K), float64, to features (B, D), float64, as `Schema.encode` does with their cells."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.columns = schema.columns

    def forward(self, values: Float[Tensor, "B K"]) -> Float[Tensor, "B D"]:
        """Return the features."""
        parts = [self._features(column, values[:, k : k + 1]) for k, column in enumerate(self.columns)]
        return torch.cat(parts, dim=1)

    def _features(self, column: Column, value: Float[Tensor, "B 1"]) -> Float[Tensor, "B F"]:
        empty = torch.isnan(value)
        filled = torch.where(empty, torch.full_like(value, column.fill), value)
        if column.kind == "category":
            parts = [(value == place).double() for place in range(len(column.categories))]
            if column.other:
                parts.append((value >= len(column.categories)).double())
        elif column.kind == "date":
            parts = [part for name in column.parts for part in self._date(column, name, filled)]
        else:
            parts = [filled]
        if column.missing:
            parts.append(empty.double())
        return torch.cat(parts, dim=1)

    def _date(self, column: Column, part: str, days: Float[Tensor, "B 1"]) -> list[Float[Tensor, "B 1"]]:
        if part == "days":
            return [days - column.low]
        phase = days / PERIODS[part]
        # Runtimes have sines of float32 only, and float32 cannot hold the days since 1970 with their hours.
        angle = (2 * math.pi * (phase - torch.floor(phase))).float()
        return [torch.sin(angle).double(), torch.cos(angle).double()]


def column_values(schema: Schema, table: Any) -> NDArray[np.float64]:
    """The numbers (N, K) with which the rows of a table are given to an exported file.

    Raises:
        InputError: A column is missing, or a cell is not of the kind of its column.
    """
    given = as_table(table)
    schema.require_columns(given)
    values = [_numbers(column, given[column.name]) for column in schema.columns]
    return np.stack(values, axis=1)


def _numbers(column: Column, values: NDArray[Any]) -> NDArray[np.float64]:
    if column.kind != "category":
        return column.real(values)
    place = {category: float(position) for position, category in enumerate(column.categories)}
    other = float(len(column.categories))
    return np.array([math.nan if word is None else place.get(word, other) for word in cells.words(values)])


def described_columns(schema: Schema) -> list[dict[str, Any]]:
    """The columns of the file's input in their order, as JSON types: name, kind, meaning of the number, categories."""
    return [
        {
            "name": column.name,
            "kind": column.kind,
            "value": _DESCRIPTIONS[column.kind],
            **({"categories": list(column.categories)} if column.kind == "category" else {}),
        }
        for column in schema.columns
    ]


def drawn_rows(schema: Schema, n: int, seed: int) -> dict[str, NDArray[Any]]:
    """Draw cells to verify with: values inside and outside the range of training, all categories, an unknown one, empty cells."""
    rng = np.random.default_rng(seed)
    return {column.name: _drawn(column, rng, n) for column in schema.columns}


def _drawn(column: Column, rng: np.random.Generator, n: int) -> NDArray[Any]:
    margin = 0.1 * (column.high - column.low)
    if column.kind == "category":
        drawn: NDArray[Any] = rng.choice(np.array([*column.categories, "(never seen)"], dtype=object), n)
    elif column.kind == "boolean":
        drawn = rng.integers(0, 2, n).astype(object)
    elif column.kind == "date":
        days = rng.uniform(column.low - margin, column.high + margin, n).clip(cells.FIRST_DAY, cells.LAST_DAY)
        drawn = (np.datetime64("1970-01-01") + (days * 86400).astype("timedelta64[s]")).astype(object)
    else:
        drawn = rng.uniform(column.low - margin, column.high + margin, n).astype(object)
    drawn[rng.random(n) < 0.1] = None
    return drawn


def check_encoding(encoding: TableEncoding, schema: Schema, table: Any) -> None:
    """Require that the encoding inside the file is that of the library.

    Raises:
        InputError: They differ.
    """
    expected = torch.from_numpy(schema.encode(table).x)
    got = encoding(torch.from_numpy(column_values(schema, table)))
    scale = expected.abs().clamp_min(1.0)
    difference = float(((got - expected).abs() / scale).max())
    if not difference <= _DIFFERENCE:
        raise InputError(f"the encoding of rows in the file differs from that of the library by {difference:.2g}")
