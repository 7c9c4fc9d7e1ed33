"""Tables that unpack to many times their size, or lie about it: each is refused, or costs no more than it holds."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ltnode
from ltnode.cluster import blocks
from ltnode.cluster.data_source import Source
from ltnode.errors import DataError, InputError
from ltnode.tables import Schema, cells, parquet_rows, read_table

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ",".join(f"c{column}" for column in range(10_000))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_short_lines_are_not_filled_up_to_gigabytes(tmp_path: Path, end: str) -> None:
    """160 KB: 50,000 lines of one cell below 10,000 names would become 4 GB of missing cells."""
    path = tmp_path / "short.csv"
    path.write_bytes((NAMES + end + ("1" + end) * 50_000).encode())
    began = time.monotonic()
    with pytest.raises(DataError, match="at most 200,000,000 cells"):
        read_table(path)
    path.write_bytes((NAMES + end + ("1" + end) * 5_000).encode())
    with pytest.raises(DataError, match="hold about"):
        read_table(path)
    assert time.monotonic() - began < 10


def test_lines_may_end_early(tmp_path: Path) -> None:
    """Spreadsheets leave out empty cells at the end of a line: three of four columns, as before."""
    (tmp_path / "t.csv").write_text("a,b,c,d\n1,2,3\n4,5\n")
    assert np.isnan(read_table(tmp_path / "t.csv")["d"].astype(float)).all()


@pytest.mark.parametrize("names", [[f"c{n}" for n in range(200_000)], [f"c{n // 2}" for n in range(400_000)]])
def test_a_header_of_a_million_names_is_refused_at_once(tmp_path: Path, names: list[str]) -> None:
    """Comparing all names with each other would take minutes."""
    (tmp_path / "wide.csv").write_text(",".join(names)[: 1 << 20] + "\n1\n")
    began = time.monotonic()
    with pytest.raises(DataError, match="at most 10,000 columns"):
        read_table(tmp_path / "wide.csv")
    assert time.monotonic() - began < 5


def test_a_long_text_in_many_rows_is_in_memory_once(tmp_path: Path) -> None:
    """100 KB of text in 60,000 rows: 160 KB in the file, 6 GB if every cell had its own copy."""
    text = "x" * 100_000
    column = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(60_000, np.int32)), arrow.array([text]))
    path = tmp_path / "text.parquet"
    parquet.write_table(arrow.table({"s": column, "y": np.arange(60_000.0)}), path, compression="zstd", store_schema=False)
    before = arrow.total_allocated_bytes()
    tracemalloc.start()
    table = read_table(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(table["s"]) == 60_000 and table["s"][59_999] == text
    assert peak < 100e6 and arrow.total_allocated_bytes() - before < 100e6


def test_the_cells_of_a_parquet_file_are_counted_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MB of zeros in a few kilobytes, with a budget of 8 MB; what a file declares about itself is not believed."""
    path = tmp_path / "zeros.parquet"
    parquet.write_table(arrow.table({"x": np.zeros(2_000_000)}), path, compression="zstd")
    monkeypatch.setattr(parquet_rows, "LARGEST_UNPACKED", 8 << 20)
    with pytest.raises(DataError, match="at most 8,388,608 bytes"):
        read_table(path)


@pytest.mark.parametrize(("start", "rows"), [(0, None), (0, 10), (37, 50), (95, 5), (60, 40)])
def test_rows_of_a_parquet_file_are_those_of_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, rows: int | None
) -> None:
    """Any part, with row groups of 30 rows and batches of 7; texts differ between the row groups. The reference is pyarrow."""
    monkeypatch.setattr(parquet_rows, "_BATCH_ROWS", 7)
    frame = pd.DataFrame({"x": np.arange(100) * 0.5, "s": [f"text {n // 3}" if n % 5 else None for n in range(100)]})
    parquet.write_table(arrow.Table.from_pandas(frame), tmp_path / "t.parquet", row_group_size=30)
    found = parquet_rows.read_rows(parquet_rows.open_parquet(str(tmp_path / "t.parquet")), None, start, rows).to_pandas()
    expected = frame.iloc[start : None if rows is None else start + rows].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.astype({"s": object}), expected.astype({"s": object}), check_dtype=False)


def test_a_file_that_declares_a_trillion_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for all of them would fill the memory before the first row is read."""
    parquet.write_table(arrow.table({"x": np.zeros(3)}), tmp_path / "t.parquet")

    class Lying:
        num_rows = 10**12

    monkeypatch.setattr(parquet, "read_metadata", lambda file: Lying())
    with pytest.raises(InputError, match="1,000,000,000,000 rows"):
        blocks.find_blocks([str(tmp_path / "t.parquet")])


def _npz(shape: tuple[int, ...]) -> bytes:
    head = str({"descr": "<f8", "fortran_order": False, "shape": shape}).ljust(117).encode() + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return file.getvalue()


def _archive_of_text() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"not an array")
    return file.getvalue()


@pytest.mark.no_typecheck  # the check of types would refuse the member that is no array
@pytest.mark.parametrize("content", [b"", b"PK", _npz((200_000_000_000,)), _npz((5,))[:-30], _npz((-1,)), _archive_of_text()])
@pytest.mark.parametrize("read", [read_table, lambda path: Source(str(path)).load(ltnode.TrainConfig())])
def test_a_damaged_npz_file_is_refused(tmp_path: Path, content: bytes, read: Any) -> None:
    """Both for tables and for the data of a sweep: cut off, empty, with 1.5 TB by its header, or with a member that is none."""
    (tmp_path / "t.npz").write_bytes(content)
    with pytest.raises(DataError):
        read(tmp_path / "t.npz")


@pytest.mark.no_typecheck
@pytest.mark.parametrize("key", ["low", "fill", "high"])
@pytest.mark.parametrize("value", [1e300, -1e300, 1e10, 2_932_897.0, -719_163.0])
def test_a_schema_has_dates_of_the_calendar(key: str, value: float) -> None:
    """Other numbers of days would end the server when it describes the columns of its models."""
    days = np.array([f"2024-01-{day:02d}" for day in range(1, 31)], object)
    content = Schema.infer({"d": days, "y": np.arange(30) * 1.5}, "y").to_json()
    content["columns"][0][key] = value
    with pytest.raises(InputError):
        Schema.from_json(json.loads(json.dumps(content)))


@pytest.mark.parametrize("cell", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00", np.datetime64("20000-01-01")])
def test_a_date_outside_of_the_calendar_is_a_bad_cell(cell: Any) -> None:
    """In UTC it is in no year that Python knows; days of an array of dates are bounded alike."""
    assert cells.dates(np.array([cell], object), "iso").bad.all()
    if isinstance(cell, np.datetime64):
        assert cells.dates(np.array([cell], "datetime64[D]"), "iso").bad.all()
    assert not cells.dates(np.array(["0001-01-01", "9999-12-31"], object), "iso").bad.any()
