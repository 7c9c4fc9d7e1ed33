"""Readers of the official file formats: IDX, CIFAR-10 batches (binary and python), SVHN .mat.

Every reader takes one file, returns uint8 arrays, and raises DataError for a file that is truncated, damaged or in another
format. No reader executes code from a file.
"""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ltnode.data.budget import Budget
from ltnode.data.mat_file import MatError, read_arrays
from ltnode.errors import DataError

Bytes = NDArray[np.uint8]

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3072
_LARGEST_BATCH = 1 << 26  # bytes; an official CIFAR batch has 31 MB
_LARGEST_ARCHIVE = 1 << 30  # bytes after unpacking; the official archives have 186 MB


class RawSplit(NamedTuple):
    """Pixels uint8 ``(N, C, H, W)`` and labels uint8 ``(N,)``."""

    x: Bytes
    y: Bytes


def _damaged(path: Path | str, why: object, what: str) -> DataError:
    return DataError(f"{path} is not a valid {what} ({why}); download the file again")


def read_idx(path: Path, budget: Budget | None = None) -> Bytes:
    """Read an array of unsigned bytes from an IDX file, optionally compressed with gzip.

    The format: two zero bytes, type 0x08, rank, then ``rank`` big-endian 32-bit sizes, then the values.
    """
    what, budget = "IDX file of unsigned bytes", budget or Budget()
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else path.open("rb") as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
                raise _damaged(path, f"it starts with {head.hex(' ') or 'nothing'}", what)
            sizes = stream.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise _damaged(path, "its header is truncated", what)
            shape = struct.unpack(f">{head[3]}I", sizes)
            count = int(np.prod(shape, dtype=object))
            if count > budget.left:
                raise _damaged(path, f"its header declares {count} values of shape {shape}", what)
            budget.take(count, path)
            values = stream.read(count + 1)  # one more than declared, to detect a longer file
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error, what) from error
    if len(values) != count:
        more = "more" if len(values) > count else f"only {len(values)}"
        raise _damaged(path, f"its header declares {count} values of shape {shape}, but it has {more}", what)
    return np.frombuffer(values, np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, budget: Budget | None = None) -> RawSplit:
    """Read a split from an IDX file of images (rank 3) and one of labels (rank 1)."""
    x, y = read_idx(images, budget), read_idx(labels, budget)
    if x.ndim != 3 or y.ndim != 1:
        raise DataError(f"{images} has rank {x.ndim} and {labels} rank {y.ndim}; images need rank 3, labels rank 1")
    return RawSplit(x[:, None], y)


def read_cifar_binary(source: Path | bytes, name: str = "") -> RawSplit:
    """Read a CIFAR-10 binary batch: records of a label byte and the red, green and blue planes of 32 x 32 bytes.

    ``source`` is a path, or the content of a file that error messages call ``name``.
    """
    data, name = _content(source, name)
    record = 1 + _CIFAR_PIXELS
    if not data or len(data) % record:
        raise _damaged(name, f"its size of {len(data)} bytes is not a positive multiple of {record}", "CIFAR-10 binary batch")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return RawSplit(rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0])


class _PickledDtype:
    """Replacement of numpy.dtype while unpickling; accepts only unsigned bytes."""

    def __init__(self, code: bytes, align: int = 0, copy: int = 1) -> None:
        if code != b"u1":
            raise pickle.UnpicklingError(f"dtype {code!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore the state: unsigned bytes have neither byte order nor fields."""


class _PickledArray:
    """Replacement of numpy.ndarray and its constructor function while unpickling; stores shape and bytes."""

    array: Bytes

    def __init__(self, subtype: object, shape: object, code: object) -> None:
        """Ignore the arguments of the constructor function: the state has the content."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, values = state
        if not isinstance(dtype, _PickledDtype) or fortran:
            raise pickle.UnpicklingError("it contains an array other than unsigned bytes in C order")
        self.array = np.frombuffer(values, np.uint8).reshape(shape)


class _BatchUnpickler(pickle.Unpickler):
    """Unpickler that allows only the three names of an official batch, with safe replacements."""

    _ALLOWED = {  # noqa: RUF012  (read only)
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledDtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an official batch") from None


def _check_opcodes(data: bytes) -> None:
    """Read a pickle without building anything, and refuse places in its memory that no pickle of this length needs.

    The unpickler would allocate all places up to the largest number, and the bytes that a length declares.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if "PUT" in opcode.name and isinstance(argument, int) and argument > count:
            raise pickle.UnpicklingError(f"it stores an object at place {argument} after {count} instructions")


def read_cifar_python(source: Path | bytes, name: str = "") -> RawSplit:
    """Read a CIFAR-10 python batch: a pickled dict with "data" (N, 3072) and "labels".

    The unpickler allows only the contents of official batches; nothing else is imported or called.
    """
    what = "CIFAR-10 python batch"
    data, name = _content(source, name)
    try:
        _check_opcodes(data)
        batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = batch[b"data"].array, batch[b"labels"]
        # Lists that contain each other many times would become arrays of any size.
        if type(labels) is not list or not all(type(label) is int for label in labels):
            raise ValueError("its labels are not a list of integers")
        y = np.array(labels, dtype=np.int64)
        if pixels.ndim != 2 or pixels.shape[1] != _CIFAR_PIXELS or y.shape != pixels.shape[:1]:
            raise ValueError(f"data of shape {pixels.shape} with labels of shape {y.shape}")
        if y.size and not 0 <= y.min() <= y.max() <= 255:
            raise ValueError(f"labels from {y.min()} to {y.max()}")
    except Exception as error:  # a damaged pickle can raise any exception
        raise _damaged(name, error or type(error).__name__, what) from error
    return RawSplit(pixels.reshape(-1, *_CIFAR_SHAPE), y.astype(np.uint8))


def _content(source: Path | bytes, name: str) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, name
    try:
        if source.stat().st_size > _LARGEST_BATCH:
            raise _damaged(source, f"its size of {source.stat().st_size} bytes is too large", "CIFAR-10 batch")
        return source.read_bytes(), str(source)
    except OSError as error:
        raise _damaged(source, error, "CIFAR-10 batch") from error


def read_cifar_archive(path: Path, budget: Budget | None = None) -> tuple[RawSplit, RawSplit]:
    """Read training and test split from the official tar.gz (binary or python version) without unpacking it to disk."""
    batches: dict[str, RawSplit] = {}
    needed = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    budget = budget or Budget()
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if member.offset_data > _LARGEST_ARCHIVE:
                    raise _damaged(path, f"it unpacks to more than {_LARGEST_ARCHIVE:,} bytes", "CIFAR-10 archive")
                name = Path(member.name).name
                if not member.isfile() or name.removesuffix(".bin") not in needed or name.removesuffix(".bin") in batches:
                    continue
                stream = archive.extractfile(member)
                if stream is None or member.size > _LARGEST_BATCH:
                    raise _damaged(path, f"its member {member.name} has {member.size} bytes", "CIFAR-10 archive")
                budget.take(member.size, path)
                read = read_cifar_binary if name.endswith(".bin") else read_cifar_python
                batches[name.removesuffix(".bin")] = read(stream.read(), f"{path}, {member.name}")
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise _damaged(path, error, "CIFAR-10 archive") from error
    missing = [name for name in needed if name not in batches]
    if missing:
        raise _damaged(path, f"missing members: {', '.join(missing)}", "CIFAR-10 archive")
    return joined([batches[name] for name in needed[:5]]), batches["test_batch"]


def joined(splits: list[RawSplit]) -> RawSplit:
    """Concatenate splits in order."""
    return RawSplit(np.concatenate([s.x for s in splits]), np.concatenate([s.y for s in splits]))


def read_svhn(path: Path, budget: Budget | None = None) -> RawSplit:
    """Read an SVHN file: ``X`` uint8 (32, 32, 3, N) and ``y`` (N, 1) with labels 1 to 10, where 10 is the digit 0."""
    what = "SVHN .mat file"
    try:
        content = read_arrays(path, ("X", "y"), budget or Budget())
        pixels, labels = content["X"], content["y"].reshape(-1)
    except (OSError, MatError, KeyError) as error:
        missing = isinstance(error, KeyError)
        raise _damaged(path, f"it has no variable {error}" if missing else error, what) from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or labels.dtype.kind not in "uif" or not labels.size:
        raise _damaged(path, f"X is {pixels.dtype} {pixels.shape}, y {labels.dtype} {labels.shape}", what)
    if labels.min() < 1 or labels.max() > 10 or (labels != labels.round()).any():
        raise _damaged(path, f"labels must lie in 1..10, not in {labels.min()}..{labels.max()}", what)
    return RawSplit(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8))
