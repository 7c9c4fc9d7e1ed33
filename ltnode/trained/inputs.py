"""Raw batches from files and arrays: images, folders of images, .npy arrays and .csv tables."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.errors import DataError, InputError
from ltnode.imagefiles.decode import LOCAL_FORMATS, MAX_PIXELS, UnusableImage, decode
from ltnode.tables import Schema, read_table
from ltnode.trained.images import check_image_shape, decode_image
from ltnode.trained.pixels import pixel_tensor
from ltnode.typing import Num, Tensor

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp", ".tif", ".tiff")
ARRAY_SUFFIXES = (".npy", ".csv", ".tsv")
_DELIMITERS = ("\t", ";", ",")


@dataclass(frozen=True, eq=False)
class Batch:
    """Raw inputs from one file.

    Attributes:
        names: Name of every input: the file, and the position in the file if it holds several inputs.
        raw: The inputs, as `TrainedModel.prepare` takes them.
        notes: Description of the conversions.
        columns: Names of the columns of a table with a header.
        row_notes: By position, what was unusual about an input, such as a category that training did not have.
    """

    names: tuple[str, ...]
    raw: Num[Tensor, "B *shape"]
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    row_notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def find_files(path: Path) -> list[Path]:
    """A file itself, or all images in a folder and its subfolders, sorted by name.

    Raises:
        InputError: The folder contains no images.
    """
    return [Path(file) for file in images_among(files_below(str(path)), path)] if path.is_dir() else [path]


def images_among(found: Iterable[str], folder: Path | str) -> list[str]:
    """The images among the files of a folder.

    Raises:
        InputError: There are none.
    """
    images = [file for file in found if file.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        raise InputError(f"{folder} contains no images ({', '.join(IMAGE_SUFFIXES)})")
    return images


def files_below(folder: str) -> Iterator[str]:
    """The files in a folder and its subfolders, sorted by name, without hidden ones; links to folders are not followed."""
    # There may be millions of files, of which each would cost many times as much as an object of pathlib.
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path)
        elif entry.is_file():
            yield entry.path


def read_pixels(file: str, shape: tuple[int, ...], max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Read an image file as raw pixels of a shape (C, H, W), with Pillow; see `decode_image`.

    Raises:
        InputError: The file is missing, damaged, or no image; the message names the file.
    """
    content = _content(file)
    try:
        _require_images(shape)
        return decode(content, (shape[0], shape[1], shape[2]), max_pixels, LOCAL_FORMATS)[0]
    except (InputError, UnusableImage) as error:
        raise InputError(f"{file}: {error}") from error


def _content(file: Path | str) -> bytes:
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 (faster for one of a million images)
            return opened.read()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error


def _require_images(shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise InputError(f"the model takes vectors of {shape[0]} numbers: give a .csv or .npy file")
    check_image_shape(shape)


def read_input(path: Path, shape: tuple[int, ...], max_pixels: int = MAX_PIXELS, schema: Schema | None = None) -> Batch:
    """Read the inputs in one file, for a network that takes inputs of a given shape.

    Args:
        path: ``.npy`` file with one input or a batch, ``.csv`` file with one vector per line and an optional header, or an image.
        shape: (C, H, W) or (D,).
        max_pixels: Largest number of pixels of an image.
        schema: Columns of a table, for a model that takes its rows; the file is then a table (.csv, .tsv, .parquet or .npz).

    Raises:
        InputError: The file is missing, damaged, or of another shape; the message names the file.
    """
    if schema is not None:
        return _read_rows(path, schema)
    content = _content(path)
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            raw = batch_of_array(_read_npy(content), shape)
            return Batch(_numbered(str(path), len(raw)), raw)
        if kind in (".csv", ".tsv"):
            table = read_csv(content, shape)
            return Batch(tuple(f"{path}:{line}" for line in table.lines), table.raw, columns=table.columns)
        _require_images(shape)
        decoded = decode_image(content, shape, max_pixels, LOCAL_FORMATS)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Batch((str(path),), decoded.pixels[None], decoded.notes)


def _read_rows(path: Path, schema: Schema) -> Batch:
    """Rows of a table; they are counted from 1, without the line of the names and without empty lines."""
    try:
        table = read_table(path)
    except DataError as error:
        raise InputError(str(error)) from error
    try:
        encoded = schema.encode(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    names = tuple(f"{path} row {row}" for row in range(1, len(encoded.x) + 1))
    columns = tuple(column.name for column in schema.columns)
    return Batch(names, torch.from_numpy(encoded.x), encoded.notes, columns, encoded.row_notes)


def _numbered(name: str, n: int) -> tuple[str, ...]:
    return (name,) if n == 1 else tuple(f"{name}[{position}]" for position in range(n))


def _read_npy(content: bytes) -> NDArray[Any]:
    # numpy.load would also accept zip archives and, depending on the first bytes, pickles.
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # the header is parsed as a Python literal, so nearly any exception is possible
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"this is not a numeric array in NumPy's .npy format ({reason})") from error


def batch_of_array(array: NDArray[Any], shape: tuple[int, ...]) -> Num[Tensor, "B *shape"]:
    """Convert a numeric array with one input or several to a raw batch.

    Args:
        array: (C, H, W) or (B, C, H, W), where an axis of one channel may be missing; (D,) or (B, D), or (B,) if D is 1. Pixels
            are integers in 0..255 or floats in [0, 1].
        shape: (C, H, W) or (D,).

    Raises:
        InputError: The array has another shape or dtype, or its values are out of range.
    """
    if array.dtype.kind not in "iuf":
        raise InputError(f"the array must hold real numbers, not {array.dtype}")
    original = array.shape
    if array.size == 0:
        raise InputError(f"the array of shape {original} is empty")
    if shape[0] == 1 and original in (shape[1:], (*original[:1], *shape[1:])):
        array = array.reshape(-1, *shape)
    elif original == shape:
        array = array[None]
    if array.shape[1:] != shape:
        sizes = ", ".join(str(n) for n in shape)
        comma = "," if len(shape) == 1 else ""
        raise InputError(f"the array must have shape ({sizes}{comma}) or (B, {sizes}), not {original}")
    if not np.isfinite(array).all():
        raise InputError(f"NaN or inf in {int((~np.isfinite(array)).sum())} of {array.size} places; remove or impute them")
    return torch.from_numpy(array.astype(np.float64)) if len(shape) == 1 else pixel_tensor(array)


class Table(NamedTuple):
    """Vectors of a table, the numbers of their lines (from 1), and the names of its columns if it has a header."""

    raw: Num[Tensor, "B D"]
    lines: list[int]
    columns: tuple[str, ...]


def read_csv(content: bytes, shape: tuple[int, ...]) -> Table:
    """Read the vectors of a table with commas, semicolons or tabs.

    The first line is a header if none of its cells is a number; empty lines are skipped.

    Raises:
        InputError: The model takes images, a line has another number of columns, or a cell is not a finite number.
    """
    if len(shape) != 1:
        raise InputError(f"a table holds vectors, but the model takes images of shape {shape}: give image files or .npy arrays")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"this is not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    first = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    vectors: list[list[float]] = []
    lines: list[int] = []
    columns: tuple[str, ...] = ()
    try:
        for position, (line, cells) in enumerate(_filled_lines(text, delimiter)):
            _check_columns(line, len(cells), shape[0])
            if position == 0 and all(_number(cell) is None for cell in cells):
                columns = tuple(cell.strip() for cell in cells)
                continue
            vectors.append([_finite(cell, line, column) for column, cell in enumerate(cells, 1)])
            lines.append(line)
    except csv.Error as error:
        raise InputError(f"this is not a table ({error})") from error
    if not vectors:
        raise InputError("the table contains no numbers")
    return Table(torch.tensor(vectors, dtype=torch.float64), lines, columns)


def _filled_lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _check_columns(line: int, columns: int, expected: int) -> None:
    if columns != expected:
        hint = "; leave out the target" if columns == expected + 1 else ""
        raise InputError(f"line {line} must have {expected} columns, not {columns}{hint}")


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000 as a number, tables do not
    except ValueError:
        return None


def _finite(cell: str, line: int, column: int) -> float:
    value = _number(cell)
    if value is None or not math.isfinite(value):
        raise InputError(f"line {line}, column {column}: {cell.strip()[:40]!r} is not a finite number; remove or impute it")
    return value
