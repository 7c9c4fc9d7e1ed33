"""What is known about the data set of a model: its shape, classes and normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ltnode.data import SPECS, Dataset
from ltnode.data import load as load_data
from ltnode.data import names as data_names
from ltnode.errors import InputError


def data_record(data: Dataset | str | None) -> dict[str, Any]:
    """The record that a run on a data set would contain; image files are not read.

    Raises:
        InputError: No data set has this name.
    """
    if data is None:
        return {}
    if isinstance(data, str) and data in SPECS:
        known: Any = SPECS[data]
        shape, n_classes = known.shape, len(known.class_names)
    else:
        known = loaded(data)
        shape, n_classes = known.input_shape, known.n_classes
    constants = known.normalise
    return {
        "name": known.name,
        "input_shape": shape,
        "n_classes": n_classes,
        "class_names": known.class_names,
        "normalise": None if constants is None else {"mean": constants.mean, "std": constants.std},
        **_of_table(known),
    }


def _of_table(known: Any) -> dict[str, Any]:
    schema = getattr(known, "schema", None)
    return {} if schema is None else {"schema": schema.to_json()}


def recorded(name: str | None) -> Dataset:
    """The built-in data set that a run records.

    Raises:
        InputError: No name is recorded, or it is not that of a built-in set.
    """
    if name is None:
        raise InputError("nothing records what the model was trained on: pass data, a Dataset or the name of a data set")
    if name not in data_names():
        raise InputError(f"the model was trained on {name!r}, which is not a built-in data set: pass data, the Dataset")
    return load_data(name)


def loaded(data: Dataset | str) -> Dataset:
    """The data set itself, or the one of a name."""
    if not isinstance(data, Dataset | str):
        raise InputError(f"data must be a Dataset or the name of a data set, not {type(data).__name__}")
    return load_data(data) if isinstance(data, str) else data


def class_names(record: Mapping[str, Any], n_classes: int) -> tuple[str, ...]:
    """One name per class: those of the record, of the built-in data set, or the numbers of the classes."""
    names = record.get("class_names")
    if names is None and record.get("name") in SPECS:
        names = SPECS[record["name"]].class_names
    # A model may have been built for more classes than its data set has; classes without a name are called by their number.
    known = tuple(str(name) for name in names or ())[:n_classes]
    return known + tuple(str(label) for label in range(len(known), n_classes))


def finite_numbers(values: Any) -> tuple[float, ...]:
    """The constants of a normalisation; a ValueError or TypeError if they are not finite numbers."""
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"the normalisation must have finite numbers, not {numbers}")
    return numbers
