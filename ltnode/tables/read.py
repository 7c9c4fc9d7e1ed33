"""Tables from files: CSV, TSV, Parquet and .npz, all of bounded size."""

from __future__ import annotations

import csv
import io
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.errors import DataError, InputError, missing_extra
from ltnode.tables.parquet_rows import open_parquet, read_rows, require_parquet
from ltnode.tables.schema import Table, as_table, shortened
from ltnode.tables.schema_json import MOST_COLUMNS

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
LARGEST_FILE = 2 << 30
"""Bytes of a file."""
MOST_CELLS = 200_000_000
_FEW_CELLS = 10_000_000
"""Cells that a text file may have however few of them are written."""
_FILLED = 4
"""How many times the written cells a larger text file may have: short lines are filled up to the first one."""
_DELIMITERS = (",", ";", "\t", "|")
_DECIMAL_COMMA = re.compile(r"(?:^|;)\s*-?\d+,\d+\s*(?=;|$)", re.MULTILINE)


def read_table(source: Any) -> Table:
    """Read the columns of a table.

    Args:
        source: Path of a .csv, .tsv, .parquet or .npz file, a DataFrame, or a mapping from names to 1-D arrays. The first line of
            a text file names the columns, which are separated by commas, semicolons, tabs or vertical bars; the text is UTF-8. An
            .npz file holds arrays of one length; the columns of a 2-D array x are called x_0, x_1, ...

    Raises:
        DataError: The file is missing, too large, damaged or of another kind; the message says what to do.
        InputError: Column names repeat, or there are no rows.
        MissingExtraError: pandas or pyarrow is not installed.
    """
    if not isinstance(source, str | Path):
        return as_table(source)
    path = Path(source).expanduser()
    content = read_content(path)
    kind = path.suffix.lower()
    try:
        if kind == ".npz":
            columns = as_table(_read_npz(content))
        else:
            columns = as_table(
                _read_parquet(content) if kind == ".parquet" else read_text(content, "\t" if kind == ".tsv" else None)
            )
        if len(columns) > MOST_COLUMNS:
            raise InputError(f"a table may have at most {MOST_COLUMNS:,} columns, not {len(columns):,}")
    except (InputError, DataError) as error:
        raise type(error)(f"{path}: {error}") from error
    return columns


def read_content(path: Path) -> bytes:
    """The bytes of the file of a table.

    Raises:
        DataError: It is missing, too large, not a regular file, or of another kind.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(
            f"{path} is not a table that can be read ({', '.join(TABLE_SUFFIXES)}); save it as CSV, with the column names in "
            "the first line"
        )
    if not path.exists():
        beside = sorted(other.name for other in path.parent.glob("*") if other.suffix.lower() in TABLE_SUFFIXES)
        hint = f"; the folder has {shortened(beside, 5)}" if beside else ""
        raise DataError(f"{path} does not exist{hint}")
    try:
        if path.is_dir() or not path.is_file():
            raise DataError(f"{path} must be a regular file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise DataError(f"{path} must have at most {LARGEST_FILE:,} bytes, not {size:,}; draw a part of its rows")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _pandas(purpose: str) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise missing_extra("pandas", "tables", purpose) from error
    return pandas


def read_text(content: bytes, delimiter: str | None = None) -> Any:
    """Read a text file with one row per line as a DataFrame; None finds the delimiter in the first line.

    Raises:
        DataError: It is not such a file.
    """
    pandas = _pandas("reading CSV and TSV files")
    if not content.strip():
        raise DataError("the file is empty; the first line must name the columns")
    if b"\x00" in content[:4096]:
        raise DataError("the file is not UTF-8 text (it holds zero bytes); export the table as CSV with the encoding UTF-8")
    try:
        header = content[: 1 << 20].decode("utf-8-sig", errors="ignore").lstrip("\r\n").splitlines()[0]
    except IndexError:
        raise DataError("the file is empty; the first line must name the columns") from None
    delimiter = delimiter or max(_DELIMITERS, key=lambda mark: (header.count(mark), -_DELIMITERS.index(mark)))
    _check_cells(content, delimiter, _check_header(header, delimiter))
    sample = content[: 1 << 16].decode("utf-8", errors="ignore")
    decimal = "," if delimiter == ";" and _DECIMAL_COMMA.search(sample) else "."

    def parse() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns about lines that are too long
            return pandas.read_csv(
                io.BytesIO(content), sep=delimiter, decimal=decimal, index_col=False, encoding="utf-8-sig", low_memory=False
            )

    return _parsed(parse, "a table with one row per line")


def _check_cells(content: bytes, delimiter: str, columns: int) -> None:
    """Refuse a file whose lines would be filled up to many times the cells that they hold."""
    lines = content.count(b"\n") + content.count(b"\r") - content.count(b"\r\n") + 1
    cells, written = lines * columns, lines + content.count(delimiter.encode())
    if cells > MOST_CELLS:
        raise DataError(f"a table may have at most {MOST_CELLS:,} cells, not {lines:,} lines of {columns:,} columns")
    if cells > max(_FEW_CELLS, _FILLED * written):
        raise DataError(f"its {lines:,} lines hold about {written:,} cells, but the first line names {columns:,} columns")


def _check_header(header: str, delimiter: str) -> int:
    """Check the names of the columns, and return their number."""
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    except (csv.Error, StopIteration) as error:
        raise DataError(f"the first line must name the columns ({error})") from error
    if len(names) == 1:
        raise DataError(
            f"the file has one column, {names[0][:60]!r}: the others are missing, or are not separated by commas, semicolons, "
            "tabs or |"
        )
    if len(names) > MOST_COLUMNS:
        raise DataError(f"a table may have at most {MOST_COLUMNS:,} columns, not {len(names):,}")
    if len(set(names)) != len(names):
        [(repeated, _)] = Counter(names).most_common(1)
        raise DataError(f"column names must differ, but {repeated[:40]!r} appears more than once in the first line; rename one")
    if all(re.fullmatch(r"-?\d+([.,]\d*)?([eE][-+]?\d+)?", name) for name in names):
        raise DataError(
            f"the first line must name the columns, but it holds numbers ({shortened(names, 3)}); add a line with names"
        )
    return len(names)


def _read_parquet(content: bytes) -> Any:
    _pandas("reading Parquet files")
    require_parquet("tables", "reading Parquet files")
    from pyarrow import types

    def parse() -> Any:
        file = open_parquet(io.BytesIO(content))
        rows, names = file.metadata.num_rows, file.schema_arrow.names
        if len(names) > MOST_COLUMNS or rows * len(names) > MOST_CELLS:
            raise DataError(
                f"a table may have at most {MOST_COLUMNS:,} columns and {MOST_CELLS:,} cells, not {rows:,} rows of "
                f"{len(names):,} columns"
            )
        nested = [field.name for field in file.schema_arrow if types.is_nested(field.type)]
        if nested:
            raise DataError(f"cells must be single values, but the column {nested[0]!r} holds lists or tables; remove it")
        return read_rows(file).to_pandas()

    return _parsed(parse, "a Parquet file")


def _read_npz(content: bytes) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name, array in read_arrays(content).items():
        if array.ndim not in (1, 2):
            raise DataError(f"the array {name!r} must be 1-D or 2-D, not of shape {array.shape}")
        if len(columns) + math.prod(array.shape[1:]) > MOST_COLUMNS:
            raise DataError(f"a table may have at most {MOST_COLUMNS:,} columns; the array {name!r} has {array.shape[-1]:,}")
        columns |= {name: array} if array.ndim == 1 else {f"{name}_{m}": array[:, m] for m in range(array.shape[1])}
    return columns


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file.

    Raises:
        DataError: It is not such a file, or its arrays are too large.
    """

    def parse() -> dict[str, NDArray[Any]]:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST_FILE:
            raise DataError(f"the arrays may have at most {LARGEST_FILE:,} bytes, not {size:,}")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        # numpy returns the bytes of a member that is not an array.
        other = [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]
        if other:
            raise DataError(f"the member {other[0]!r} of the archive is not an array")
        return arrays

    return _parsed(parse, "an .npz file of numeric or text arrays")


def _parsed(parse: Callable[[], Any], what: str) -> Any:
    """What a parser returns; any exception of it becomes one line."""
    try:
        return parse()
    except (DataError, InputError):
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"the file is not UTF-8 text ({error.reason} at byte {error.start}); save it with the encoding UTF-8 "
            "(it may be Latin-1 or Windows-1252)"
        ) from error
    except Exception as error:  # a parser of untrusted files can raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"the file is not {what} ({reason}); check its delimiter and its lines, or export it again") from error
