"""Archives and indexes that anybody may have written: everything but plain files of a run folder is refused with one line."""

from __future__ import annotations

import io
import json
import struct
import time
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from ltnode.errors import DataError
from ltnode.hub.archive import unpack
from ltnode.hub.index import read_index

GOOD = {"config.json": b"{}", "model.safetensors": b"weights"}
ENTRY: dict[str, Any] = {"model": "lt-node", "task": "classification", "data": "x", "shape": [2], "size": 10, "sha256": "a" * 64}


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def duplicate() -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")
        for name in (*GOOD, "config.json"):
            archive.writestr(name, b"{}")
    return content.getvalue()


def overlapping() -> bytes:
    """A table of contents in which every name points at the same megabyte."""
    content = bytearray(zipped({**GOOD, "README.md": bytes(1 << 20)}))
    start, big = content.index(b"PK\1\2"), content.rindex(b"PK\1\2")
    sizes = content[big + 16 : big + 28]
    while start < big:
        content[start + 16 : start + 28] = sizes
        content[start + 42 : start + 46] = content[big + 42 : big + 46]
        start = content.index(b"PK\1\2", start + 4)
    return bytes(content)


def flagged(bit: int) -> bytes:
    """Every file claims to be encrypted, or has another flag."""
    content = bytearray(zipped(GOOD))
    start = -1
    while (start := content.find(b"PK\1\2", start + 1)) >= 0:
        content[start + 8 : start + 10] = struct.pack("<H", bit)
    return bytes(content)


def test_a_good_archive_is_unpacked() -> None:
    assert unpack(zipped(GOOD), "x.zip") == GOOD


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: zipped({**GOOD, "../../evil.json": b""}), "no file of a run folder"),
        (lambda: zipped({**GOOD, "/etc/cron.d/evil": b""}), "no file of a run folder"),
        (lambda: zipped({**GOOD, "C:\\evil": b""}), "no file of a run folder"),
        (lambda: zipped({**GOOD, "checkpoints/state.json": b""}), "no file of a run folder"),
        (lambda: zipped({**GOOD, "setup.py": b""}), "no file of a run folder"),
        (lambda: zipped({**GOOD, "\x1b[31m": b""}), "no file of a run folder"),
        (lambda: zipped({"config.json": b"{}"}), "model.safetensors is missing"),
        (lambda: zipped({**GOOD, "README.md": bytes(50 << 20)}, zipfile.ZIP_DEFLATED), "neither compressed nor encrypted"),
        (lambda: zipped({**GOOD, "README.md": bytes(1 << 20)}, zipfile.ZIP_LZMA), "neither compressed nor encrypted"),
        (lambda: flagged(1), "neither compressed nor encrypted"),
        (duplicate, "holds a file twice"),
        (overlapping, "."),
        (lambda: zipped(GOOD)[:-5], "not a zip file"),
        (lambda: zipped(GOOD).replace(b"weights", b"Weights"), "CRC"),
        (lambda: b"", "not a zip file"),
        (lambda: b"PK\5\6" + bytes(18), "is missing"),
    ],
)
def test_a_hostile_archive_is_refused(content: Callable[[], bytes], reason: str) -> None:
    """Names that lead out of the folder, bombs, files twice, overlapping files, damage: refused within a second, in one line."""
    data = content()
    began = time.monotonic()
    with pytest.raises(DataError, match=reason) as caught:
        unpack(data, "x.zip")
    assert time.monotonic() - began < 1
    assert "\n" not in str(caught.value)


def index(entry: dict[str, Any] | None = None, name: str = "x", version: object = 1) -> bytes:
    return json.dumps({"format": version, "models": {name: ENTRY if entry is None else {**ENTRY, **entry}}}).encode()


def test_a_good_index_is_read() -> None:
    assert read_index(index(), "index.json")["x"].shape == (2,)


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "a\\b", "", "-rf", ".hidden", "x" * 65, "X", "x\n", "\x1b[31m", "x."])
def test_names_that_are_no_names_are_refused(name: str) -> None:
    """A name becomes the name of a folder and part of an address."""
    with pytest.raises(DataError, match="is not the name of a model"):
        read_index(index(name=name), "index.json")


@pytest.mark.parametrize(
    "entry",
    [
        {"size": -1}, {"size": 0}, {"size": 1 << 40}, {"size": True}, {"size": 1.5}, {"size": None}, {"sha256": ""},
        {"sha256": "A" * 64}, {"sha256": "../" * 21 + "a"}, {"sha256": 5}, {"shape": []}, {"shape": [0]}, {"shape": "22"},
        {"shape": [1 << 30]}, {"shape": [True]}, {"model": 5}, {"task": "x" * 300}, {"data": None},
    ],
)  # fmt: skip
def test_an_entry_with_a_wrong_value_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="is not an index of models"):
        read_index(index(entry), "index.json")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"format": 1, "models": []}', b"\xff", b"1" * 5000]
)
def test_what_is_no_index_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="is not an index of models"):
        read_index(content, "index.json")


def test_an_index_of_a_newer_version_says_so() -> None:
    with pytest.raises(DataError, match="upgrade ltnode"):
        read_index(index(version=2), "index.json")
