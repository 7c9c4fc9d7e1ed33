"""Batches from arrays and tables: every reasonable layout is accepted; everything else is refused with a reason."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from ltnode.errors import InputError
from ltnode.trained import read_input, to_png
from ltnode.trained.inputs import batch_of_array, find_files, read_csv

GREY, COLOUR = (1, 4, 5), (3, 4, 5)


def write(path: Path, array: NDArray[Any], **options: Any) -> Path:
    np.save(path, array, **options)
    return path


# -- arrays --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shape", "batch"),
    [
        ((3, 4, 5), COLOUR, 1), ((7, 3, 4, 5), COLOUR, 7), ((4, 5), GREY, 1), ((1, 4, 5), GREY, 1), ((7, 4, 5), GREY, 7),
        ((7, 1, 4, 5), GREY, 7), ((3,), (3,), 1), ((7, 3), (3,), 7), ((7,), (1,), 7), ((7, 1), (1,), 7),
    ],
)  # fmt: skip
def test_one_input_or_a_batch(given: tuple[int, ...], shape: tuple[int, ...], batch: int) -> None:
    """The values keep their order: only the batch axis and the axis of a single channel are added."""
    array = np.arange(np.prod(given, dtype=int), dtype=np.float64).reshape(given) / 1000
    raw = batch_of_array(array, shape)
    assert raw.shape == (batch, *shape)
    assert np.allclose(raw.numpy().ravel(), array.ravel(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("given", [(4, 5), (5, 4, 3), (2, 4, 5, 3), (3, 4, 6), (2, 2, 3, 4, 5), (60,)])
def test_other_shapes_are_refused(given: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"must have shape \(3, 4, 5\) or \(B, 3, 4, 5\)"):
        batch_of_array(np.zeros(given), COLOUR)


@pytest.mark.parametrize("given", [(0,), (0, 3), (0, 4, 5)])
def test_an_empty_array_is_refused(given: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="is empty"):
        batch_of_array(np.zeros(given), GREY)


def test_whole_numbers_are_pixels() -> None:
    """int64 in 0..255 is the same image as uint8; big-endian numbers are the same numbers."""
    values = np.arange(20).reshape(4, 5) * 12
    expected = torch.from_numpy(values.astype(np.uint8))[None, None]
    for dtype in ("uint8", "int64", ">i4"):
        raw = batch_of_array(values.astype(dtype), GREY)
        assert raw.dtype == torch.uint8
        assert torch.equal(raw, expected)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (300, "0..255"),
        (-1, "0..255"),
        (255.0, r"in \[0, 1\].*divide"),
        (-0.5, r"in \[0, 1\]"),
        (np.nan, "NaN or inf in 20 of 20"),
    ],
)
def test_pixels_of_another_scale_are_refused(values: float, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        batch_of_array(np.full((4, 5), values), GREY)


@pytest.mark.parametrize("array", [np.zeros(3, dtype=bool), np.zeros(3, dtype=complex), np.array(["a", "b", "c"])])
def test_arrays_of_other_things_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(InputError, match="must hold real numbers"):
        batch_of_array(array, (3,))


def test_npy_names_its_inputs(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.npy", np.zeros((4, 5))), write(tmp_path / "two.npy", np.zeros((2, 4, 5)))
    assert read_input(one, GREY).names == (str(one),)
    assert read_input(two, GREY).names == (f"{two}[0]", f"{two}[1]")


def npy_header(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "content",
    [b"", b"1,2,3", b"PK\x03\x04" + bytes(50), npy_header("(10**9,)"), npy_header("(1000000000000,)") + bytes(80),
     npy_header("(3,)"), npy_header("(-1,)"), npy_header("__import__('os')")],
    ids=["empty", "text", "npz", "code in the header", "bomb by header", "truncated", "negative", "call"],
)  # fmt: skip
def test_damaged_arrays_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    with pytest.raises(InputError, match="x.npy"):
        read_input(file, (3,))


def test_object_arrays_are_never_unpickled(tmp_path: Path) -> None:
    """A pickled array in the .npy format and a bare pickle are both refused before any of their code runs."""

    class Trap:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit('unpickled')",)

    objects = write(tmp_path / "objects.npy", np.array([Trap(), Trap()], dtype=object), allow_pickle=True)
    bare = tmp_path / "bare.npy"
    bare.write_bytes(objects.read_bytes()[128:])
    for file in (objects, bare):
        with pytest.raises(InputError, match="not a numeric array"):
            read_input(file, (2,))


# -- tables --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n-3,4e1\n", "1,2.5\n-3,4e1", "a,b\n1,2.5\n-3,4e1\n", "1;2.5\n-3;4e1\n", "x\ty\r\n1\t2.5\r\n-3\t4e1\r\n",
        "\n1,2.5\n\n-3,4e1\n\n", "\ufeffa,b\n1,2.5\n-3,4e1\n", '"1","2.5"\n"-3","4e1"\n', " 1 , 2.5\n-3,  40\n",
    ],
)  # fmt: skip
def test_tables_of_many_dialects(text: str) -> None:
    raw, *_ = read_csv(text.encode(), (2,))
    assert torch.equal(raw, torch.tensor([[1.0, 2.5], [-3.0, 40.0]], dtype=torch.float64))


def test_a_table_names_its_lines(tmp_path: Path) -> None:
    """Line numbers of the file, as an editor shows them: the header and empty lines count."""
    file = tmp_path / "points.csv"
    file.write_text("x\n0.5\n\n-1\n")
    assert read_input(file, (1,)).names == (f"{file}:2", f"{file}:4")


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=5))
def test_written_numbers_are_read_exactly(rows: list[list[float]]) -> None:
    """Python's shortest representation of a float identifies it: equality, no tolerance."""
    raw, lines, _ = read_csv("\n".join(",".join(map(repr, row)) for row in rows).encode(), (3,))
    assert raw.tolist() == rows
    assert lines == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,2\n3\n", "line 2 must have 2 columns, not 1"),
        ("a,b,y\n1,2,0\n", "line 1 must have 2 columns, not 3; leave out the target"),
        ("1,2\n3,x\n", "line 2, column 2: 'x' is not a finite number"),
        ("1,nan\n", "line 1, column 2: 'nan'"),
        ("1,inf\n", "line 1, column 2: 'inf'"),
        ("1,1e999\n", "'1e999' is not a finite number"),
        ("1,\n", "line 1, column 2: ''"),
        ("1,1_000\n", "1_000"),
        ("a,b\n", "contains no numbers"),
        ("", "contains no numbers"),
        ("1,\0\n", "column 2"),
    ],
)
def test_bad_tables_say_where(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_csv(text.encode(), (2,))


def test_binary_content_is_not_a_table() -> None:
    with pytest.raises(InputError, match="UTF-8"):
        read_csv(b"\xff\xfe1\x00", (1,))


def test_tables_are_for_vectors_and_images_for_images(tmp_path: Path) -> None:
    table, image = tmp_path / "x.csv", tmp_path / "x.png"
    table.write_text("1,2\n")
    image.write_bytes(to_png(torch.zeros(1, 4, 5, dtype=torch.uint8)))
    with pytest.raises(InputError, match=r"x.csv: a table holds vectors, but the model takes images"):
        read_input(table, GREY)
    with pytest.raises(InputError, match=r"x.png: the model takes vectors of 2 numbers"):
        read_input(image, (2,))
    assert read_input(image, GREY).raw.shape == (1, *GREY)


# -- folders -------------------------------------------------------------------------------------------------------------------


def test_folders_give_their_images_by_name(tmp_path: Path) -> None:
    """Subfolders are searched too; hidden files and files of other kinds are skipped."""
    for name in ("b.PNG", "a.jpg", "deep/c.webp", ".hidden.png", ".cache/d.png", "notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
    assert [file.relative_to(tmp_path).as_posix() for file in find_files(tmp_path)] == ["a.jpg", "b.PNG", "deep/c.webp"]


def test_files_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """The order of `sorted` for paths, in which a folder comes before a file that continues its name; links are not followed."""
    for name in ("a/z.png", "a.png", "a-b/c.png", "B.png", "a/b/c.png"):
        file = tmp_path / "all" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    assert find_files(tmp_path / "all") == sorted((tmp_path / "all").rglob("*.png"))
    with contextlib.suppress(OSError):  # not every system lets everybody make links
        (tmp_path / "all" / "again").symlink_to(tmp_path / "all", target_is_directory=True)
    assert len(find_files(tmp_path / "all")) == 5


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no images"):
        find_files(tmp_path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none.png: No such file"):
        read_input(tmp_path / "none.png", GREY)


def test_archives_are_refused(tmp_path: Path) -> None:
    """numpy.load would open a zip archive that is named .npy."""
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    (tmp_path / "x.npy").write_bytes(file.getvalue())
    with pytest.raises(InputError, match="not a numeric array"):
        read_input(tmp_path / "x.npy", (3,))
