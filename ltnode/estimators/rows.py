"""The rows that users give: matrices of numbers, and DataFrames with categories, booleans, dates and missing values.

A matrix is used as it is. A DataFrame with a column that is not a number, or with a missing cell, gets a schema
(`ltnode.tables.Schema`), which encodes its rows as features. Features are then standardised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_consistent_length, validate_data

from ltnode.data.table import SMALLEST_SPREAD
from ltnode.errors import InputError
from ltnode.estimators.uncertainty import FloatArray
from ltnode.tables import Column, Schema, Table, Target, as_table
from ltnode.tables.cells import missing
from ltnode.tables.kinds import kind_of, reason_to_ignore

Rows = FloatArray | Table
"""A matrix (n_samples, n_features), or columns by name."""


def checked_rows(estimator: BaseEstimator, X: Any, schema: Schema | None, reset: bool, y: Any = None) -> Rows:
    """Check rows as scikit-learn does, and return a matrix of finite numbers, or a table if the rows have a schema or need one.

    Args:
        estimator: Gets ``n_features_in_`` and ``feature_names_in_`` with ``reset``, and otherwise determines what is required.
        X: What the user gave.
        schema: The schema of the training rows; None if they were a matrix.
        reset: Whether these are the first rows.
        y: Targets of the rows, of which only the number is checked.

    Raises:
        InputError: The rows must be a DataFrame and are not, or the table is not one.
        ValueError: scikit-learn's checks of a matrix fail.
    """
    frame = hasattr(X, "columns") and hasattr(X, "keys")
    if schema is not None and not reset and not frame:
        raise InputError(f"X must be a DataFrame with the columns that fit was given, not {type(X).__name__}")
    if frame and (_needs_schema(X) if reset else schema is not None):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        if y is not None:
            check_consistent_length(X, y)
        return as_table(X)
    matrix: FloatArray = validate_data(estimator, X, dtype=np.float64, reset=reset)
    if y is not None:
        check_consistent_length(matrix, y)
    return matrix


@dataclass(frozen=True, eq=False)
class Examples:
    """Checked rows with their labels or targets.

    Attributes:
        rows: The rows.
        target: Labels (N,) in 0..C-1, or targets (N,) or (N, K).
        weights: How many rows each row counts for; None counts each once.
        categories: Columns of a table that were declared as categories.
        name: Name of the target.
    """

    rows: Rows
    target: NDArray[Any]
    weights: FloatArray | None = None
    categories: tuple[str, ...] = ()
    name: str = "target"

    def __len__(self) -> int:
        return len(self.target)

    def select(self, positions: NDArray[np.int64]) -> Examples:
        """The examples at some positions."""
        if isinstance(self.rows, np.ndarray):
            rows: Rows = self.rows[positions]
        else:
            rows = {name: column[positions] for name, column in self.rows.items()}
        weights = None if self.weights is None else self.weights[positions]
        return replace(self, rows=rows, target=self.target[positions], weights=weights)


def inferred_schema(table: Table, categories: tuple[str, ...], target: Target) -> Schema:
    """Infer the columns of a table from its rows; constant columns, identifiers and columns without a value are ignored.

    Args:
        table: Rows that the model may learn from.
        categories: Columns that hold categories, whatever their cells look like.
        target: What is predicted.

    Raises:
        InputError: No column is left.
    """
    while target.name in table:  # the target of an estimator is not a column of its table
        target = replace(target, name=f"{target.name}_")
    columns: list[Column] = []
    ignored: list[tuple[str, str]] = []
    for name, values in table.items():
        kind = "category" if name in categories else kind_of(values)
        reason = "no values" if missing(values).all() else reason_to_ignore(name, values, kind)
        if reason is None:
            columns.append(Column.fitted(name, kind, values))
        else:
            ignored.append((name, reason))
    if not columns:
        raise InputError(f"no column of X is of use ({'; '.join(f'{name}: {reason}' for name, reason in ignored)})")
    return Schema(tuple(columns), (target,), ignored=tuple(ignored))


def categorical_columns(X: Any) -> tuple[str, ...]:
    """Columns of a DataFrame that were declared as categories; none for other rows."""
    if not (hasattr(X, "columns") and hasattr(X, "keys")):
        return ()
    return tuple(str(name) for name, dtype in zip(X.columns, X.dtypes, strict=True) if str(dtype) == "category")


def target_name(y: Any) -> str:
    """Name of a column of targets; "target" for arrays."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) and name else "target"


def fitted_scaler(features: FloatArray, schema: Schema | None, weights: FloatArray | None) -> StandardScaler:
    """Fit the standardisation of features; rare indicators are scaled less than to unit variance."""
    scaler = StandardScaler().fit(features, sample_weight=weights)
    if schema is not None:
        indicators = np.array([feature.indicator for feature in schema.features])
        scaler.scale_ = np.where(indicators, np.maximum(scaler.scale_, SMALLEST_SPREAD), scaler.scale_)
    return scaler


def _needs_schema(X: Any) -> bool:
    """Whether a DataFrame has a column that is not a number, or a missing cell."""
    plain = all(getattr(dtype, "kind", "O") in "biuf" for dtype in X.dtypes)
    return not plain or bool(X.isna().to_numpy().any())
