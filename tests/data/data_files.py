"""Tiny files in the official formats, and specifications that describe them."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from ltnode.data import specs
from ltnode.data.formats import RawSplit
from ltnode.data.specs import Content, ImageSpec

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class TinySet:
    """A training and a test split of random pixels, with every label of 0 to 9."""

    train: RawSplit
    test: RawSplit


def tiny_set(name: str, seed: int = 0) -> TinySet:
    rng = np.random.default_rng(seed)
    shape = specs.image_spec(name).shape

    def split(count: int) -> RawSplit:
        return RawSplit(rng.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10)

    return TinySet(split(20), split(10))


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files(content: TinySet, *, compressed: bool = True) -> dict[str, bytes]:
    files = {}
    for split, (images, labels) in ((content.train, IDX_FILES["train"]), (content.test, IDX_FILES["test"])):
        files |= {images: idx(split.x[:, 0]), labels: idx(split.y)}
    if compressed:
        return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
    return files


def cifar_batch_binary(split: RawSplit) -> bytes:
    return np.concatenate([split.y[:, None], split.x.reshape(len(split.x), -1)], axis=1).tobytes()


def cifar_batch_python(split: RawSplit) -> bytes:
    """A batch as pickled by Python 2 (protocol 2, byte strings), which the current pickle module cannot write."""

    def string(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def listed(items: list[bytes]) -> bytes:
        return b"](" + b"".join(items) + b"e"

    rows = split.x.reshape(len(split.x), -1)
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R(K\x03" + string(b"|")
    dtype += b"NNN" + integer(-1) + integer(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R(K\x01"
    array += integer(rows.shape[0]) + integer(rows.shape[1]) + b"\x86" + dtype + b"\x89" + string(rows.tobytes()) + b"tb"
    entries = {
        b"batch_label": string(b"training batch 1 of 5"),
        b"labels": listed([b"K" + bytes([int(label)]) for label in split.y]),
        b"data": array,
        b"filenames": listed([string(b"camion_s_000148.png") for _ in split.y]),
    }
    return b"\x80\x02}(" + b"".join(string(key) + value for key, value in entries.items()) + b"u."


def cifar_files(content: TinySet, kind: str = "bin") -> dict[str, bytes]:
    encode, ending = (cifar_batch_binary, ".bin") if kind == "bin" else (cifar_batch_python, "")
    per_batch = len(content.train.x) // 5
    files = {}
    for k in range(5):
        part = slice(k * per_batch, (k + 1) * per_batch)
        files[f"data_batch_{k + 1}{ending}"] = encode(RawSplit(content.train.x[part], content.train.y[part]))
    return files | {f"test_batch{ending}": encode(content.test)}


def cifar_archive(content: TinySet, kind: str = "bin") -> dict[str, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in {**cifar_files(content, kind), "readme.html": b"<html>"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-{kind}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return {f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz": buffer.getvalue()}


def svhn_files(content: TinySet) -> dict[str, bytes]:
    from scipy.io import savemat

    files = {}
    for role, split in (("train", content.train), ("test", content.test)):
        buffer = io.BytesIO()
        labels = np.where(split.y == 0, 10, split.y).astype(np.uint8)[:, None]
        savemat(buffer, {"X": split.x.transpose(2, 3, 1, 0), "y": labels}, do_compression=True)
        # scipy writes the current time into the header, but the same content must give the same bytes.
        files[f"{role}_32x32.mat"] = b"MATLAB 5.0 MAT-file".ljust(116) + buffer.getvalue()[116:]
    return files


def files_of(name: str, content: TinySet) -> dict[str, bytes]:
    """The files of a download of the set."""
    return {"cifar10": cifar_archive, "svhn": svhn_files}.get(name, idx_files)(content)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def describe_as_official(monkeypatch: pytest.MonkeyPatch, name: str, content: TinySet) -> ImageSpec:
    """Change the specification of ``name`` so that ``content`` is the official content."""

    def entry(split: RawSplit) -> Content:
        return Content(len(split.x), md5(split.x.transpose(0, 2, 3, 1).tobytes()), md5(split.y.tobytes()))

    files = {file: md5(data) for file, data in files_of(name, content).items()}
    row = replace(
        specs.image_spec(name),
        train=entry(content.train),
        test=entry(content.test),
        file_md5=MappingProxyType(files),
    )
    monkeypatch.setattr(specs, "SPECS", {**specs.SPECS, name: row})
    return row
