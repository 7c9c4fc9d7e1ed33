"""MNIST, Fashion-MNIST, CIFAR-10 and SVHN: import, load and list the sets in the data folder."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ltnode.data import specs
from ltnode.data.cache import CachedSet, data_root, read_cache, write_cache
from ltnode.data.dataset import Dataset, Split
from ltnode.data.official import Imported, expected_files, locate, read_official
from ltnode.data.specs import ImageSpec, image_spec
from ltnode.errors import DataError

Status = Literal["ready", "importable", "incomplete", "damaged", "missing"]


@dataclass(frozen=True)
class SetInfo:
    """State of an image set in the data folder.

    Attributes:
        name: Name of the set for `load`.
        title: Name in reports.
        status: "ready" (imported), "importable" (all official files are in the data folder), "incomplete" (some of them
            are), "damaged" or "missing".
        detail: Description of the problem; empty if there is none.
        folder: Folder of the arrays, whether it exists or not.
        shape: (C, H, W) of an image.
        licence: Terms of use.
        n_train: Number of training images; 0 unless ready.
        n_test: Number of test images; 0 unless ready.
        n_bytes: Size of the arrays on disk; 0 unless ready.
        source: "official", "reconstructed" or "unverified"; None unless ready.
        verified: Whether the content was recognised; None unless ready.
    """

    name: str
    title: str
    status: Status
    detail: str
    folder: Path
    shape: tuple[int, int, int]
    licence: str
    n_train: int = 0
    n_test: int = 0
    n_bytes: int = 0
    source: str | None = None
    verified: bool | None = None


def describe(name: str, root: Path | str | None = None) -> SetInfo:
    """State of the image set ``name`` in the data folder."""
    spec, base = image_spec(name), data_root(root)
    folder = _cache_folder(spec, base)
    status: Status
    try:
        cached = read_cache(folder)
        status, detail = ("ready", "") if cached else _status_of_files(spec, base)
    except DataError as error:
        cached, status, detail = None, "damaged", str(error)
    state = SetInfo(spec.name, spec.title, status, detail, folder, spec.shape, spec.licence)
    if cached is None:
        return state
    n_train, n_test = len(cached.arrays["train_x"]), len(cached.arrays["test_x"])
    return replace(state, n_train=n_train, n_test=n_test, n_bytes=cached.n_bytes, source=cached.source, verified=cached.verified)


def _status_of_files(spec: ImageSpec, base: Path) -> tuple[Status, str]:
    files = locate(spec, _usual_places(spec, base))
    if files is None:
        return "missing", ""
    return ("incomplete", f"missing: {', '.join(files.missing)}") if files.missing else ("importable", "")


def info(root: Path | str | None = None) -> list[SetInfo]:
    """State of every image set in the data folder."""
    return [describe(name, root) for name in specs.SPECS]


def import_files(name: str, folder: Path | str, root: Path | str | None = None, *, unverified: bool = False) -> SetInfo:
    """Read the official files of a set from ``folder``, verify them, and store them as memory-mapped arrays under ``root``.

    Args:
        name: Name of the image set.
        folder: Folder of the files (its usual sub-folders are searched too), or the tar.gz of CIFAR-10.
        root: Folder for the arrays; see :func:`ltnode.data.cache.data_root`.
        unverified: Accept files of the right format with other content. This is recorded in the provenance of every run
            that uses them.

    Raises:
        DataError: Files are missing, truncated, in another format, or not the official ones. Nothing is written.
    """
    spec, base, folder = image_spec(name), data_root(root), Path(folder).expanduser()
    if not folder.exists():
        raise DataError(f"{folder} does not exist; pass the folder with the {spec.title} files")
    files = locate(spec, [folder, *_usual_places(spec, folder)])
    if files is None:
        raise DataError(f"{folder} contains no {spec.title} files; expected {expected_files(spec)}")
    _store(spec, base, read_official(spec, files, unverified=unverified))
    return describe(name, base)


def load_images(name: str, root: Path | str | None = None) -> Dataset:
    """Load the image set ``name`` as memory-mapped uint8 arrays; official files in ``root`` are imported first."""
    spec, base = image_spec(name), data_root(root)
    cached = read_cache(_cache_folder(spec, base))
    if cached is None:
        files = locate(spec, _usual_places(spec, base))
        if files is None:
            raise DataError(
                f"{spec.title} is not in {base}. Download it with `ltnode data fetch {spec.name}`, or import existing files "
                f"with `ltnode data import {spec.name} DIR`"
            )
        cached = _stored_or_in_memory(spec, base, read_official(spec, files))
    return _dataset(spec, cached)


def _cache_folder(spec: ImageSpec, base: Path) -> Path:
    return base / spec.name / "arrays"


def _usual_places(spec: ImageSpec, base: Path) -> list[Path]:
    return [base / folder for folder in spec.folders]


def _store(spec: ImageSpec, base: Path, content: Imported) -> None:
    write_cache(_cache_folder(spec, base), content.train, content.test, checksums=content.checksums, source=content.source)


def _stored_or_in_memory(spec: ImageSpec, base: Path, content: Imported) -> CachedSet:
    try:
        _store(spec, base, content)
    except DataError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        # The official files in a read-only folder can still be used from memory.
        train, test = content.train, content.test
        arrays = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
        return CachedSet({key: np.array(array) for key, array in arrays.items()}, content.checksums, content.source, 0)
    cached = read_cache(_cache_folder(spec, base))
    if cached is None:
        raise DataError(f"{_cache_folder(spec, base)} was deleted during the import; run the import again")
    return cached


def _dataset(spec: ImageSpec, cached: CachedSet) -> Dataset:
    def split(role: str) -> Split:
        y = cached.arrays[f"{role}_y"].astype(np.int64)
        return Split(torch.from_numpy(cached.arrays[f"{role}_x"]), torch.from_numpy(y))

    return Dataset(
        name=spec.name,
        task="classification",
        train=split("train"),
        test=split("test"),
        n_classes=len(spec.class_names),
        class_names=spec.class_names,
        normalise=spec.normalise,
        augment=spec.augment,
        checksums=cached.checksums,
        verified=cached.verified,
        ood=spec.ood,
        source=cached.source,
    )
