"""Find the official files of an image set, read them, and verify their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ltnode.data import formats
from ltnode.data.budget import Budget
from ltnode.data.dataset import array_md5
from ltnode.data.formats import RawSplit
from ltnode.data.specs import ImageSpec, Layout
from ltnode.errors import DataError

_CHUNK = 4096  # images; limits the memory for a checksum


@dataclass(frozen=True)
class LocatedFiles:
    """Files of a set in one folder, in the order of their layout, and the names of missing files."""

    layout: Layout
    paths: tuple[Path, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    """Content of a set; ``source`` is "official", "reconstructed" or "unverified"."""

    train: RawSplit
    test: RawSplit
    checksums: dict[str, str]
    source: str


def locate(spec: ImageSpec, places: list[Path]) -> LocatedFiles | None:
    """Files of ``spec`` in the first of ``places`` with all of them, else in the place with the fewest missing files."""
    best: LocatedFiles | None = None
    for place in places:
        for layout in spec.layouts:
            hits = [_first_file(place, names) for names in layout.files]
            paths = tuple(path for path in hits if path is not None)
            missing = tuple(names[0] for names, hit in zip(layout.files, hits, strict=True) if hit is None)
            if paths and (best is None or len(missing) < len(best.missing)):
                best = LocatedFiles(layout, paths, missing)
    return best


def _first_file(place: Path, names: tuple[str, ...]) -> Path | None:
    if place.is_file():
        return place if place.name in names else None
    return next((place / name for name in names if (place / name).is_file()), None)


def expected_files(spec: ImageSpec) -> str:
    """Names of the official files, for messages."""
    return " or ".join(", ".join(names[0] for names in layout.files) for layout in spec.layouts)


def read_official(spec: ImageSpec, files: LocatedFiles, *, unverified: bool = False) -> Imported:
    """Read and verify the files of a set.

    The content is recognised if its checksums equal those in the table, or if every file has the md5 of the official file. The
    latter is needed for SVHN, where the checksums in the table belong to a reconstruction. Other content raises a DataError,
    unless ``unverified`` accepts it and its shape and labels fit.
    """
    if files.missing:
        raise DataError(
            f"{spec.title} is incomplete: {', '.join(files.missing)} missing in the folder of {files.paths[0]}; "
            f"required files: {expected_files(spec)}"
        )
    train, test = _read(files)
    for role, split in (("training", train), ("test", test)):
        _check_shape(spec, role, split, files)
    digests = {"train_x": _pixels_md5(train), "train_y": array_md5(train.y)}
    digests |= {"test_x": _pixels_md5(test), "test_y": array_md5(test.y)}
    known = {"train_x": spec.train.x_md5, "train_y": spec.train.y_md5}
    known |= {"test_x": spec.test.x_md5, "test_y": spec.test.y_md5}
    differing = [key for key in known if digests[key] != known[key]]
    if not differing:
        source: str = spec.content_source
    elif all(_file_md5(path) == spec.file_md5.get(path.name) for path in files.paths):
        source = "official"
    elif unverified:
        source = "unverified"
    else:
        raise DataError(
            f"{files.paths[0].parent}: these are not the official {spec.title} files ({', '.join(differing)} differ: "
            f"{len(train.x)} training and {len(test.x)} test images, {spec.train.count} and {spec.test.count} expected). "
            "Download them again, or import them with --unverified (unverified=True) if they differ on purpose"
        )
    return Imported(train, test, {key: f"md5:{value}" for key, value in digests.items()}, source)


def _read(files: LocatedFiles) -> tuple[RawSplit, RawSplit]:
    paths, budget = files.paths, Budget()
    match files.layout.reader:
        case "idx":
            return formats.read_idx_pair(paths[0], paths[1], budget), formats.read_idx_pair(paths[2], paths[3], budget)
        case "cifar-archive":
            return formats.read_cifar_archive(paths[0], budget)
        case "svhn":
            return formats.read_svhn(paths[0], budget), formats.read_svhn(paths[1], budget)
        case "cifar-binary" | "cifar-python" as kind:
            read = formats.read_cifar_binary if kind == "cifar-binary" else formats.read_cifar_python
            *train, test = (read(path) for path in paths)
            return formats.joined(train), test


def _check_shape(spec: ImageSpec, role: str, split: RawSplit, files: LocatedFiles) -> None:
    where = f"{files.paths[0].parent}, {role} split"
    if split.x.shape[1:] != spec.shape:
        raise DataError(f"{where}: images of {spec.title} must have shape {spec.shape}, not {split.x.shape[1:]}")
    if len(split.x) != len(split.y) or not len(split.x):
        raise DataError(f"{where}: {len(split.x)} images but {len(split.y)} labels; there must be one label per image")
    if split.y.max() >= len(spec.class_names):
        raise DataError(f"{where}: labels of {spec.title} must lie in 0..{len(spec.class_names) - 1}, not {split.y.max()}")


def _pixels_md5(split: RawSplit) -> str:
    """md5 of the pixels in the order (N, H, W, C), as in the table of image sets."""
    digest = hashlib.md5(usedforsecurity=False)
    for start in range(0, len(split.x), _CHUNK):
        digest.update(np.ascontiguousarray(split.x[start : start + _CHUNK].transpose(0, 2, 3, 1)).data)
    return digest.hexdigest()


def _file_md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
