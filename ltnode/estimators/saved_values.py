"""The values of estimator.json: what is written, and strict checks of what is read, which may be anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.checks import is_finite_number
from ltnode.errors import InputError, unknown_name
from ltnode.estimators.uncertainty import FloatArray

_KEYS = frozenset(
    {
        "format",
        "estimator",
        "parameters",
        "n_features",
        "feature_names",
        "schema",
        "scaler",
        "target_scaler",
        "classes",
        "interval_scores",
        "n_iter",
        "loss_curve",
        "validation_scores",
        "validation_rows",
        "calibration_rows",
        "split_seed",
        "refitted",
    }
)
_LABEL_TYPE = re.compile(r"[biuf][1248]|U|O")
_LONGEST_TEXT = 1000
_MOST_CLASSES = 100_000


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator as JSON types; a random state that is not an integer becomes None.

    Raises:
        InputError: A parameter is neither a number, nor text, nor a boolean.
    """
    plain: dict[str, Any] = {}
    for name, value in parameters.items():
        item = value.item() if isinstance(value, np.generic) else value
        if name == "random_state" and not isinstance(item, int):
            item = None
        if not isinstance(item, str | int | float | bool | None):
            raise InputError(f"the parameter {name} must be a number, text or a boolean to be saved, not {type(value).__name__}")
        plain[name] = item
    return plain


def labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    """Labels and their type.

    Raises:
        InputError: Labels are not numbers, booleans or text.
    """
    kind = labels.dtype.kind
    if kind not in "biufUO" or (kind == "O" and not all(isinstance(label, str) for label in labels)):
        raise InputError(f"labels must be numbers, booleans or text to be saved, not {labels.dtype}; use joblib.dump")
    return {"type": kind if kind in "UO" else labels.dtype.str[1:], "values": labels.tolist()}


class Reader:
    """Reads values of a JSON object, and refuses those that are not as they must be.

    Args:
        content: The content of the file.
        keys: The keys that it must have.

    Raises:
        InputError: It is not an object with exactly these keys. All methods raise it for values that are not as required.
    """

    def __init__(self, content: Any, keys: Iterable[str] = _KEYS) -> None:
        if not isinstance(content, dict) or set(content) != set(keys):
            raise InputError(f"it must have the keys {', '.join(sorted(keys))}")
        self._content = content

    def value(self, name: str) -> Any:
        """The value, whatever it is."""
        return self._content[name]

    def inner(self, name: str, keys: set[str]) -> Reader:
        """An object inside of the object."""
        return Reader(self._content[name], keys)

    def require(self, name: str, fits: bool) -> None:
        """Require that a value fits the others."""
        if not fits:
            raise InputError(f"{name} is not valid, or does not fit the network and the other values")

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer in a range."""
        value = self._content[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InputError(f"{name} must be an integer from {low} to {high}, not {str(value)[:40]!r}")
        return value

    def boolean(self, name: str) -> bool:
        """A boolean."""
        value = self._content[name]
        if not isinstance(value, bool):
            raise InputError(f"{name} must be a boolean, not {str(value)[:40]!r}")
        return value

    def choice(self, name: str, known: Iterable[str]) -> str:
        """One of some names."""
        value = self._content[name]
        if not isinstance(value, str) or value not in known:
            raise InputError(unknown_name(name, str(value)[:40], list(known)))
        return value

    def numbers(self, name: str, size: int | None = None) -> list[float]:
        """A list of finite numbers, of some length."""
        return _numbers(name, self._content[name], size)

    def texts(self, name: str, size: int) -> list[str] | None:
        """A list of different texts, or None."""
        value = self._content[name]
        if value is None:
            return None
        plain = isinstance(value, list) and all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in value)
        if not plain or len(value) != size or len(set(value)) != size:
            raise InputError(f"{name} must be a list of {size} different texts")
        return list(value)

    def parameters(self, name: str, known: Iterable[str]) -> dict[str, Any]:
        """Parameters of a constructor: numbers, texts, booleans and None by known names."""
        value = self._content[name]
        if not isinstance(value, dict):
            raise InputError(f"{name} must be an object")
        for key, item in value.items():
            if key not in known:
                raise InputError(unknown_name("parameter", str(key)[:40], list(known)))
            if not isinstance(item, str | bool | None) and not is_finite_number(item):
                raise InputError(f"the parameter {key} must be a finite number, text or a boolean, not {str(item)[:40]!r}")
        return dict(value)

    def scores(self, name: str, columns: int) -> FloatArray | None:
        """Sorted numbers >= 0 (n,), or (n, columns) for several columns, or None."""
        value = self._content[name]
        if value is None:
            return None
        rows = value if isinstance(value, list) else []
        table = np.array([_numbers(name, row if columns > 1 else [row], columns) for row in rows])
        if not len(table) or (table < 0).any() or (np.diff(table, axis=0) < 0).any():
            raise InputError(f"{name} must be a list of at least one score, in increasing order from 0")
        return table if columns > 1 else table[:, 0]

    def row_numbers(self, name: str) -> NDArray[np.int64] | None:
        """Different row numbers in increasing order, or None."""
        value = self._content[name]
        if value is None:
            return None
        plain = isinstance(value, list) and all(type(row) is int and 0 <= row < 1 << 53 for row in value)
        if not plain or any(later <= earlier for earlier, later in pairwise(value)):
            raise InputError(f"{name} must be a list of row numbers in increasing order")
        return np.array(value, dtype=np.int64)

    def labels(self, name: str, size: int) -> NDArray[Any]:
        """Different labels in increasing order, as many as the network has classes."""
        inner = self.inner(name, {"type", "values"})
        kind, values = inner.value("type"), inner.value("values")
        if not isinstance(kind, str) or not _LABEL_TYPE.fullmatch(kind) or not isinstance(values, list):
            raise InputError(f"{name} must have the type of its labels and a list of them")
        expected: tuple[type, ...] = {"b": (bool,), "f": (int, float), "U": (str,), "O": (str,)}.get(kind[0], (int,))
        if len(values) != size or size > _MOST_CLASSES or not all(type(label) in expected for label in values):
            raise InputError(f"{name} must have {size} labels of one type")
        if any(isinstance(label, str) and len(label) > _LONGEST_TEXT for label in values):
            raise InputError(f"{name} must be texts of at most {_LONGEST_TEXT:,} characters")
        try:
            labels = np.array(values, dtype=np.dtype(kind))
        except (ValueError, OverflowError, TypeError) as error:
            raise InputError(f"{name} must be of the type {kind} ({error})") from None
        if not np.array_equal(np.unique(labels), labels):
            raise InputError(f"{name} must be different labels in increasing order")
        return labels


def _numbers(name: str, value: Any, size: int | None) -> list[float]:
    plain = isinstance(value, list) and all(type(number) in (int, float) and abs(number) < math.inf for number in value)
    if not plain or (size is not None and len(value) != size):
        raise InputError(f"{name} must be a list of {'' if size is None else f'{size} '}finite numbers")
    return [float(number) for number in value]
