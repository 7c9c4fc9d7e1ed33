"""Numeric arrays from MATLAB files of version 5, the format of SVHN: a reader in Python for the one layout that is needed.

A file is a header of 128 bytes followed by elements: a tag (type, number of bytes) and the content, which zlib may compress. An
array is an element of the elements flags, dimensions, name and values. Cells, structures, text and objects are not read, so that
nothing is nested and nothing unpacks to more than the budget.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.data.budget import Budget

_HEADER = 128
_COMPRESSED, _MATRIX = 15, 14
_VALUE_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
_START = 512
"""Bytes that hold the tags, dimensions and name of any array that is read."""


class MatError(ValueError):
    """The file is not in the layout that is read."""


def read_arrays(path: Path, names: Collection[str], budget: Budget) -> dict[str, NDArray[Any]]:
    """Read the numeric arrays with the given names.

    Raises:
        MatError: The file is damaged, of another version, or an array with such a name is not a plain array of real numbers.
        DataError: The arrays would exceed the budget.
        OSError: The file cannot be read.
    """
    budget.take(path.stat().st_size, path)
    content = memoryview(path.read_bytes())
    if len(content) < _HEADER or content[124:128].tobytes() != b"\x00\x01IM":
        raise MatError("it does not start like a MATLAB file of version 5")
    arrays: dict[str, NDArray[Any]] = {}
    for kind, element in _elements(content[_HEADER:]):
        if kind == _COMPRESSED:
            name = _name(_unpacked(element, _START, path, None)[8:])
            if name in names:
                whole = _unpacked(element, budget.left, path, budget)
                inner = next(_elements(whole), None)
                if inner is None or inner[0] != _MATRIX:
                    raise MatError(f"{name} is compressed, but not an array")
                arrays[name] = _array(inner[1])
        elif kind == _MATRIX and (name := _name(element[:_START])) in names:
            budget.take(len(element), path)
            arrays[name] = _array(element)
    return arrays


def _unpacked(packed: memoryview, most: int, path: Path, budget: Budget | None) -> memoryview:
    """The first bytes of a compressed element; with a budget, all of them or a DataError."""
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(packed, most)
        if budget is not None:
            more = bool(unpack.unconsumed_tail) and bool(unpack.decompress(unpack.unconsumed_tail, 1))
            budget.take(len(content) + more, path)
    except zlib.error as error:
        raise MatError(f"a compressed array is damaged: {error}") from error
    return memoryview(content)


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The elements one after the other: their types and contents."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:  # a small element: type, size and up to four bytes share eight bytes
            kind, size = kind & 0xFFFF, kind >> 16
            start, after = at + 4, at + 8
        else:
            # Only compressed elements are not padded to multiples of eight bytes.
            start, after = at + 8, at + 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(content):
            raise MatError("an element ends after the end of the file")
        yield kind, content[start : start + size]
        at = after


def _head(element: memoryview) -> tuple[int, tuple[int, ...], str, int]:
    """Class and flags, dimensions and name of an array, and where its values start."""
    parts, at = [], 0
    for _ in range(3):
        kind, size = struct.unpack_from("<II", element, at)
        small = bool(kind >> 16)
        size = kind >> 16 if small else size
        start = at + (4 if small else 8)
        if start + size > len(element):
            raise MatError("the head of an array is truncated")
        parts.append(element[start : start + size].tobytes())
        at = at + 8 if small else start + -(-size // 8) * 8
    if len(parts[0]) != 8 or len(parts[1]) % 4 or len(parts[1]) > 32:
        raise MatError("the head of an array is damaged")
    flags, shape = struct.unpack("<II", parts[0])[0], struct.unpack(f"<{len(parts[1]) // 4}i", parts[1])
    return flags, shape, parts[2].decode("latin-1"), at


def _name(element: memoryview) -> str:
    try:
        return _head(element)[2]
    except (MatError, struct.error):
        return ""


def _array(element: memoryview) -> NDArray[Any]:
    try:
        flags, shape, name, at = _head(element)
    except struct.error as error:
        raise MatError("the head of an array is truncated") from error
    dtype = _CLASSES.get(flags & 0xFF)
    values = list(_elements(element[at:]))
    if dtype is None or flags & _COMPLEX or len(values) != 1 or values[0][0] not in _VALUE_TYPES:
        raise MatError(f"{name} is not an array of real numbers")
    stored = np.dtype(_VALUE_TYPES[values[0][0]])
    if min(shape, default=0) < 0 or math.prod(shape) * stored.itemsize != len(values[0][1]):
        raise MatError(f"{name} has the shape {shape}, which does not fit its {len(values[0][1])} bytes")
    array: NDArray[Any] = np.frombuffer(values[0][1], stored).reshape(shape, order="F")
    return array if array.dtype == np.dtype(dtype) else array.astype(dtype)
