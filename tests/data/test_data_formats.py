"""Readers of the official formats on tiny generated files: exact content, and DataError for invalid files."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    cifar_archive,
    cifar_batch_binary,
    cifar_batch_python,
    cifar_files,
    idx,
    idx_files,
    svhn_files,
    tiny_set,
    write_files,
)
from hypothesis import given
from hypothesis import strategies as st

from ltnode.data import formats
from ltnode.errors import DataError


def same(got: formats.RawSplit, want: formats.RawSplit) -> None:
    assert got.x.dtype == got.y.dtype == np.uint8
    np.testing.assert_array_equal(got.x, want.x)
    np.testing.assert_array_equal(got.y, want.y)


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_give_back_what_was_written(tmp_path: Path, compressed: bool) -> None:
    """The content is exact, because the format stores bytes."""
    content = tiny_set("mnist")
    files = idx_files(content, compressed=compressed)
    paths = [write_files(tmp_path, files) / name for name in files]
    same(formats.read_idx_pair(paths[0], paths[1]), content.train)
    same(formats.read_idx_pair(paths[2], paths[3]), content.test)


@pytest.mark.parametrize("compressed", [True, False])
@given(share=st.floats(0, 1, exclude_max=True))
def test_an_idx_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, compressed: bool, share: float) -> None:
    """A file that is truncated at any byte raises a DataError with its name."""
    data = next(iter(idx_files(tiny_set("mnist"), compressed=compressed).values()))
    path = tmp_path_factory.mktemp("idx") / "images"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="images is not a valid IDX file"):
        formats.read_idx(path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x89PNG\r\n\x1a\n", "starts with 89 50 4e 47"),
        (b"", "starts with nothing"),
        (idx(np.zeros((2, 3), np.uint8)) + b"\0", "declares 6 values .* it has more"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "starts with 00 00 0d 01"),  # floats
        (b"\0\0\x08\x04" + b"\xff" * 16, f"declares {(2**32 - 1) ** 4} values"),
    ],
)
def test_a_foreign_idx_file_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(data)
    with pytest.raises(DataError, match=why):
        formats.read_idx(path)


def test_images_and_labels_in_swapped_roles_are_refused(tmp_path: Path) -> None:
    names = list(idx_files(tiny_set("mnist")))
    folder = write_files(tmp_path, idx_files(tiny_set("mnist")))
    with pytest.raises(DataError, match="images need rank 3, labels rank 1"):
        formats.read_idx_pair(folder / names[1], folder / names[0])


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_cifar_batches_give_back_what_was_written(tmp_path: Path, kind: str) -> None:
    """The content is exact in both official versions, from a file, from bytes, and from the tar.gz."""
    content = tiny_set("cifar10")
    files = cifar_files(content, kind)
    folder = write_files(tmp_path, files | cifar_archive(content, kind))
    read = formats.read_cifar_binary if kind == "bin" else formats.read_cifar_python
    *train, test = (read(folder / name) for name in files)
    same(formats.joined(train), content.train)
    same(test, content.test)
    same(read(next(iter(files.values())), "a name"), train[0])
    archived = formats.read_cifar_archive(folder / next(iter(cifar_archive(content, kind))))
    same(archived[0], content.train)
    same(archived[1], content.test)


def test_the_generated_python_batch_is_one_that_pickle_and_numpy_read_alike() -> None:
    """Reference for generator and reader: Python's unpickler with the numpy classes."""
    content = tiny_set("cifar10").test
    data = cifar_batch_python(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the official files use the deprecated name numpy.core
        oracle = pickle.loads(data, encoding="bytes")
    got = formats.read_cifar_python(data, "batch")
    np.testing.assert_array_equal(got.x, oracle[b"data"].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(got.y, oracle[b"labels"])


class _Payload:
    """Calls ``os.mkdir`` when unpickled, which leaves a visible trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(DataError, match="which is not part of an official batch"):
        formats.read_cifar_python(pickle.dumps({b"data": _Payload(trace)}, protocol=2), "batch")
    assert not trace.exists()


def test_a_pickle_cannot_change_the_replacement_classes() -> None:
    """BUILD on an allowed class, which sets attributes in ordinary unpicklers, fails; valid batches are still read."""
    for name in (b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n"):
        with pytest.raises(DataError):
            formats.read_cifar_python(b"\x80\x02" + name + b"N}U\x05arrayK\x01s\x86b.", "batch")
    same(formats.read_cifar_python(cifar_batch_python(tiny_set("cifar10").test), "batch"), tiny_set("cifar10").test)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_python_batch_cut_anywhere_is_refused(share: float) -> None:
    data = cifar_batch_python(tiny_set("cifar10").test)
    with pytest.raises(DataError, match="not a valid CIFAR-10 python batch"):
        formats.read_cifar_python(data[: int(share * len(data))], "batch")


@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), near=st.booleans())
def test_a_python_batch_with_any_byte_altered_is_read_or_refused_but_never_crashes(
    position: float, value: int, near: bool
) -> None:
    """Changed pixels are detected later by the checksum of the content; here only DataError may be raised."""
    data = bytearray(cifar_batch_python(tiny_set("cifar10").test))
    data[int(position * (400 if near else len(data)))] = value  # the first bytes contain the structure
    try:
        got = formats.read_cifar_python(bytes(data), "batch")
    except DataError:
        return
    assert got.x.shape[1:] == (3, 32, 32)
    assert len(got.x) == len(got.y)


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": [1, 2], b"labels": [0]},
        {b"labels": [0]},
        [1, 2, 3],
        {b"data": None, b"labels": None},
    ],
)
def test_a_pickle_of_something_else_is_refused(batch: object) -> None:
    with pytest.raises(DataError, match="not a valid CIFAR-10 python batch"):
        formats.read_cifar_python(pickle.dumps(batch, protocol=3), "batch")


@pytest.mark.parametrize("length", [0, 1, 3072, 3074, 2 * 3073 - 1])
def test_a_binary_batch_that_is_no_multiple_of_a_record_is_refused(length: int) -> None:
    with pytest.raises(DataError, match=f"{length} bytes is not a positive multiple of 3073"):
        formats.read_cifar_binary(b"\0" * length, "batch")


@pytest.mark.parametrize("kind", ["bin", "py"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_cut_cifar_archive_is_refused(tmp_path: Path, kind: str, share: float) -> None:
    (name, data), *_ = cifar_archive(tiny_set("cifar10"), kind).items()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="not a valid CIFAR-10"):
        formats.read_cifar_archive(tmp_path / name)


def test_an_archive_that_lacks_a_batch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        data = cifar_batch_binary(tiny_set("cifar10").test)
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match="missing members: data_batch_1, data_batch_2"):
        formats.read_cifar_archive(path)


def test_svhn_files_give_back_what_was_written_with_digit_zero_as_label_0(tmp_path: Path) -> None:
    """The content is exact; the files use the label 10 for the digit zero."""
    content = tiny_set("svhn")
    folder = write_files(tmp_path, svhn_files(content))
    same(formats.read_svhn(folder / "train_32x32.mat"), content.train)
    same(formats.read_svhn(folder / "test_32x32.mat"), content.test)
    assert 0 in content.train.y


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.7, 0.95, 0.999])
def test_a_cut_svhn_file_is_refused(tmp_path: Path, share: float) -> None:
    data = svhn_files(tiny_set("svhn"))["test_32x32.mat"]
    (tmp_path / "test_32x32.mat").write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="not a valid SVHN"):
        formats.read_svhn(tmp_path / "test_32x32.mat")


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "no variable 'y'"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}, "X is float64"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0], [1]])}, "not in 0..1"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])}, "not in 1..11"),
    ],
)
def test_a_foreign_mat_file_is_refused(tmp_path: Path, variables: dict[str, np.ndarray], why: str) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "train_32x32.mat", variables)
    with pytest.raises(DataError, match=why):
        formats.read_svhn(tmp_path / "train_32x32.mat")
