"""The data of a user behind a trained model: schema and table of its training, other tables and folders to test on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ltnode.data import Dataset, Normalisation
from ltnode.data import names as data_names
from ltnode.data.dataset import checksums
from ltnode.data.folder import labelled_images
from ltnode.data.origin import Origin, file_sha256
from ltnode.data.own import load_again
from ltnode.data.parts import Parts
from ltnode.data.table import labelled_rows, load_table
from ltnode.errors import InputError
from ltnode.tables import Schema
from ltnode.trained.data_facts import loaded, recorded

if TYPE_CHECKING:
    from ltnode.trained.model import TrainedModel

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


def find_data(trained: TrainedModel, data: Dataset | str | None) -> Dataset:
    """Find the data that a model is used on; see `TrainedModel.dataset`."""
    if isinstance(data, Dataset):
        return data
    if trained.schema is not None and (data is None or is_table(data)):
        return table_data(data, trained.schema, trained.origin, trained.normalise, trained.path)
    if data is None and trained.origin is not None:
        return load_again(trained.origin, trained.path, trained.checksums)
    if data is None:
        return recorded((trained.config.data if trained.config else None) or trained.data)
    if isinstance(data, str) and is_folder(data):
        return folder_data(data, trained.shape, trained.class_names)
    return loaded(data)


def is_table(data: object) -> bool:
    """Whether ``data`` is the path of a file, and not of a folder; the names of data sets have no ending."""
    return isinstance(data, str | Path) and bool(Path(data).suffix or Path(data).is_file()) and not Path(data).is_dir()


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


def is_folder(data: str) -> bool:
    """Whether ``data`` is the path of a folder; a folder with the name of a built-in data set needs a path such as ./mnist."""
    return data not in data_names() and Path(data).expanduser().is_dir()


def folder_data(path: str, shape: tuple[int, ...], class_names: Sequence[str]) -> Dataset:
    """Load another folder of labelled images for a trained model; all of them are test examples.

    Raises:
        InputError: The model takes no images, or a class is not one of the model's.
        DataError: The folder cannot be read.
    """
    if len(shape) != 3:
        raise InputError(f"{path} is a folder of images, but the model takes inputs of shape {shape}")
    split = labelled_images(path, (shape[0], shape[1], shape[2]), class_names)
    everything, nothing = torch.arange(len(split)), torch.arange(0)
    return Dataset(
        Path(path).resolve().name,
        "classification",
        split,
        split,
        n_classes=len(class_names),
        class_names=tuple(class_names),
        source="folder",
        parts=Parts(everything, nothing, nothing),  # the training held out none of these
    )
