"""Hostile data files: each is refused with a DataError of one line, before it costs gigabytes or starts another program."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from ltnode.data import formats, from_folder
from ltnode.data.budget import Budget
from ltnode.data.mat_file import read_arrays
from ltnode.errors import DataError

MAT_HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(name: str, mat_class: int, shape: tuple[int, ...], values: bytes) -> bytes:
    head = element(6, struct.pack("<II", mat_class, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name.encode()) + values)


@pytest.mark.parametrize("compressed", [True, False])
def test_the_mat_reader_gives_what_scipy_gives(tmp_path: Path, rng: np.random.Generator, compressed: bool):
    """The reference is scipy's writer, for every dtype of numbers; values and dtypes are equal."""
    from scipy.io import savemat

    arrays = {f"a_{code}": rng.integers(0, 99, (3, 1, 4)).astype(code) for code in ("u1", "i1", "i2", "u2", "i4", "f4", "f8")}
    arrays |= {"X": rng.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8), "y": np.array([[1.0], [10.0]])}
    savemat(tmp_path / "file.mat", {**arrays, "words": "not read"}, do_compression=compressed)
    found = read_arrays(tmp_path / "file.mat", arrays.keys(), Budget())
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_nested_cells_in_a_mat_file_are_refused(tmp_path: Path):
    """60,000 cells inside each other overflow the stack of a recursive parser."""
    inner = b""
    for _ in range(60_000):
        inner = element(
            14, element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"") + inner
        )[:200_000]
    (tmp_path / "test_32x32.mat").write_bytes(MAT_HEADER + matrix("X", 1, (1, 1), inner))
    with pytest.raises(DataError, match="not an array of real numbers|truncated|ends after"):
        formats.read_svhn(tmp_path / "test_32x32.mat")


def test_a_mat_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path):
    """2 MB of zeros behind zlib: the reader stops at the budget (here 1 MB) and keeps nothing."""
    values = element(2, bytes(4_000_000))
    packed = zlib.compress(matrix("X", 9, (4_000_000, 1), values))
    (tmp_path / "train_32x32.mat").write_bytes(MAT_HEADER + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(DataError, match="more than an import may hold"):
        formats.read_svhn(tmp_path / "train_32x32.mat", Budget(1_000_000))


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02Nr\x00\x00\x00\x10.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x04]\x94" + b"".join(b"]\x94(" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"e" for n in range(30)) + b".",
    ],
    ids=["memo place 2^28", "bytearray of 2^40", "lists that contain each other"],
)
def test_a_pickle_bomb_is_refused(tmp_path: Path, bomb: bytes):
    (tmp_path / "data_batch_1").write_bytes(bomb)
    with pytest.raises(DataError, match="CIFAR-10 python batch"):
        formats.read_cifar_python(tmp_path / "data_batch_1")


def test_labels_that_contain_each_other_do_not_become_an_array(tmp_path: Path):
    """Ten levels of ten references each are a small pickle, but 10^10 numbers as an array."""
    labels: list[object] = [1] * 10
    for _ in range(10):
        labels = [labels] * 10
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": b"", b"labels": labels}))
    with pytest.raises(DataError, match="CIFAR-10 python batch"):
        formats.read_cifar_python(tmp_path / "test_batch")


def test_an_archive_of_many_large_batches_is_refused(tmp_path: Path):
    """Batches that no set has are skipped, and the needed ones share the budget."""
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in [*(f"data_batch_{n}.bin" for n in range(100)), *(f"data_batch_{n}.bin" for n in range(1, 6))]:
            member = tarfile.TarInfo(name)
            member.size = 30_730
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(DataError, match="more than an import may hold"):
        formats.read_cifar_archive(path, Budget(100_000))
    with pytest.raises(DataError, match="missing members: test_batch"):
        formats.read_cifar_archive(path)


def test_a_folder_image_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path):
    from PIL import Image

    (tmp_path / "a").mkdir()
    Image.new("1", (7100, 7100)).save(tmp_path / "a" / "large.png")
    with pytest.raises(DataError, match=r"large.png.*7100x7100 = 50,410,000 pixels; at most 50,000,000"):
        from_folder(tmp_path, size=8)


@pytest.mark.parametrize("name", ["x.eps", "x.avif", "x.blp", "x.dds", "x.spi"])
def test_only_the_documented_formats_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """An EPS file would start Ghostscript; the others have decoders that raise whatever they like."""
    import subprocess

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("another program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    starts = {
        "x.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n",
        "x.avif": b"\0\0\0\x20ftypavif",
        "x.blp": b"BLP2",
        "x.dds": b"DDS |\0\0\0",
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(starts.get(name, struct.pack(">27f", *[1.0] * 27)) + bytes(300))
    with pytest.raises(DataError, match=f"{name} is not an image that can be read"):
        from_folder(tmp_path, size=8)
