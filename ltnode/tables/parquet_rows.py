"""Rows of Parquet files that anybody may have written: a file of kilobytes can declare, and unpack to, any number of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ltnode.errors import DataError, missing_extra

LARGEST_UNPACKED = 4 << 30
"""Bytes of all rows that are read, with every different text of a row group counted once."""
_BATCH_ROWS = 1 << 14


def require_parquet(extra: str, purpose: str) -> Any:
    """Import the Parquet reader of pyarrow, or raise a `MissingExtraError` that names the extra."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", extra, purpose) from error
    return pyarrow.parquet


def open_parquet(source: Any, **options: Any) -> Any:
    """Open a file so that text is read with a dictionary: a long text in a million rows is in memory once."""
    from pyarrow import parquet, types

    names = [field.name for field in parquet.read_schema(source) if _is_text(types, field.type)]
    if hasattr(source, "seek"):
        source.seek(0)
    return parquet.ParquetFile(source, read_dictionary=names, **options)


def read_rows(file: Any, columns: Sequence[str] | None = None, start: int = 0, rows: int | None = None) -> Any:
    """Read some rows of an open file as an Arrow table; only the row groups that hold them are read.

    Args:
        file: What `open_parquet` returns.
        columns: Names of the columns; None reads all.
        start: Position of the first row.
        rows: Number of rows; None reads to the end.

    Raises:
        DataError: The rows are larger than `LARGEST_UNPACKED`.
    """
    import pyarrow as arrow

    end = file.metadata.num_rows if rows is None else start + rows
    parts, unpacked, first = [], 0, 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        position, texts = first, 0
        first += size
        if first <= start or position >= end:
            continue
        for batch in file.iter_batches(_batch_rows(file, group), row_groups=[group], columns=columns, use_threads=False):
            cells, texts = _bytes(batch, texts)
            kept = batch.slice(max(0, start - position), max(0, end - max(start, position)))
            unpacked += cells
            if unpacked + texts > LARGEST_UNPACKED:
                raise DataError(
                    f"its rows must have at most {LARGEST_UNPACKED:,} bytes; divide the file, or draw a part of its rows"
                )
            position += batch.num_rows
            if kept.num_rows:
                parts.append(kept)
            if position >= end:
                break
        unpacked += texts
    return arrow.Table.from_batches(parts).unify_dictionaries() if parts else file.schema_arrow.empty_table()


def _batch_rows(file: Any, group: int) -> int:
    """Rows of a batch: few where a row is large, as the file itself declares."""
    declared = file.metadata.row_group(group)
    row_bytes = max(1, declared.total_byte_size // max(1, declared.num_rows))
    return max(1, min(_BATCH_ROWS, (64 << 20) // row_bytes))


def _bytes(batch: Any, texts: int) -> tuple[int, int]:
    """Bytes of the cells of a batch, and of the texts of its row group, which most of its batches share."""
    cells, own = 0, 0
    for column in batch.columns:
        if hasattr(column, "dictionary"):
            cells, own = cells + column.indices.nbytes, own + column.dictionary.nbytes
        else:
            cells += column.nbytes
    return cells, max(texts, own)


def _is_text(types: Any, kind: Any) -> bool:
    return any(check(kind) for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))
