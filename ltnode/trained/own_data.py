"""The data of a user behind a trained model: its schema, and its table, found and loaded again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ltnode.data import Dataset, Normalisation
from ltnode.data.dataset import checksums
from ltnode.data.origin import Origin, file_sha256
from ltnode.data.table import labelled_rows, load_table
from ltnode.errors import InputError
from ltnode.tables import TABLE_SUFFIXES, Schema

_LOG = logging.getLogger("ltnode")


def recorded_schema(record: Mapping[str, Any], features: int, n_classes: int | None) -> Schema | None:
    """The schema that a run records about its data; None if they were no table.

    Raises:
        InputError: It is no schema, or belongs to another network.
    """
    content = record.get("schema")
    if content is None:
        return None
    schema = Schema.from_json(content)
    if len(schema.features) != features:
        raise InputError(f"the schema has {len(schema.features)} features, but the network takes {features}")
    if (len(schema.target.classes) or None) != n_classes:
        raise InputError(f"the schema has {len(schema.target.classes)} classes, but the network has {n_classes or 0}")
    return schema


def recorded_origin(record: Mapping[str, Any]) -> Origin | None:
    """The file of the training data that a run records; None if there was none.

    Raises:
        InputError: The record is damaged.
    """
    return None if record.get("origin") is None else Origin.from_json(record["origin"])


def is_table(data: object) -> bool:
    """Whether ``data`` is the path of a table, by its ending."""
    return isinstance(data, str | Path) and Path(data).suffix.lower() in TABLE_SUFFIXES


def table_data(
    source: str | Path | None, schema: Schema, origin: Origin | None, normalise: Normalisation | None, folder: Path | None
) -> Dataset:
    """The table of a training with its parts, or the rows of another table as test rows.

    Args:
        source: The table; None finds the one of the training. A file with the content of that one gives its parts as well, so
            that no result is measured on rows that were trained on.
        schema: Schema of the training.
        origin: Record of the table of the training.
        normalise: Normalisation of the training.
        folder: The run folder, in whose surroundings the table of the training is looked for.

    Raises:
        DataError: The file is missing, has changed, or cannot be read.
        InputError: The rows do not fit the schema.
    """
    if source is None and origin is None:
        raise InputError("the model was trained on a table in memory: name a table with the target column with --data (data=)")
    if source is None:
        assert origin is not None
        return load_table(origin.find(folder), schema)
    path = Path(source).expanduser()
    if origin is not None and path.is_file() and file_sha256(path) == origin.sha256:
        return load_table(origin.found_at(path, folder), schema)
    rows = labelled_rows(path, schema)
    _LOG.info("%s: all %d rows with a target are test rows", path.name, len(rows))
    target = schema.target
    return Dataset(
        path.name,
        target.task,
        rows,
        rows,
        len(target.classes) or None,
        target.classes or None,
        normalise,
        checksums={key: value for key, value in checksums(rows, rows).items() if key.startswith("test")},
        source="table",
        schema=schema,
    )
