"""Specifications of the four image sets, read from the table ``image_sets.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ltnode.data.augment import Augmentation, Normalisation
from ltnode.errors import InputError, unknown_name

Reader = Literal["idx", "cifar-binary", "cifar-python", "cifar-archive", "svhn"]


@dataclass(frozen=True)
class Layout:
    """A possible set of files in a folder: for each required file, its possible names."""

    reader: Reader
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Content:
    """Decompressed content of a split: number of examples, md5 of the uint8 pixels (N, H, W[, C]) and of the uint8 labels."""

    count: int
    x_md5: str
    y_md5: str


@dataclass(frozen=True)
class ImageSpec:
    """Specification of an image set.

    Attributes:
        name: Name of the set for `load`.
        title: Name in reports.
        shape: (C, H, W) of an image.
        class_names: Names in the order of the labels.
        normalise: Normalisation of the paper's experiments.
        augment: Training augmentation of the paper's experiments.
        ood: Name of the corresponding out-of-distribution set.
        layouts: Possible layouts of the official files, in order of preference.
        folders: Sub-folders of the data folder to search.
        urls: Base URLs for the download, in order of preference.
        downloads: Files to download, a subset of the names in ``file_md5``.
        file_md5: md5 of the official files as distributed.
        train: Decompressed content of the training split.
        test: Decompressed content of the test split.
        content_source: Provenance of content that equals ``train`` and ``test``.
        licence: Note on the terms of use.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    normalise: Normalisation
    augment: Augmentation
    ood: str
    layouts: tuple[Layout, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]
    downloads: tuple[str, ...]
    file_md5: Mapping[str, str]
    train: Content
    test: Content
    content_source: Literal["official", "reconstructed"]
    licence: str


def _spec(name: str, table: dict[str, Any]) -> ImageSpec:
    parts = {
        "normalise": Normalisation(**table["normalise"]),
        "augment": Augmentation(**table["augment"]),
        "layouts": tuple(Layout(**layout) for layout in table["layouts"]),
        "file_md5": MappingProxyType(table["file_md5"]),
        "train": Content(**table["train"]),
        "test": Content(**table["test"]),
    }
    return ImageSpec(**{**table, **parts, "name": name})


def _with_tuples(value: Any) -> Any:
    """Replace the lists in a TOML value by tuples, which are immutable."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


_TABLES = tomllib.loads(Path(__file__).with_name("image_sets.toml").read_text(encoding="utf-8"))
SPECS: Mapping[str, ImageSpec] = MappingProxyType({name: _spec(name, _with_tuples(table)) for name, table in _TABLES.items()})


def image_spec(name: str) -> ImageSpec:
    """Specification of the image set ``name``; an unknown name raises an InputError that suggests the nearest one."""
    if name not in SPECS:
        raise InputError(unknown_name("image set", name, SPECS))
    return SPECS[name]
