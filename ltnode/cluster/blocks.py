"""Inputs of a batch prediction, cut into blocks: the unit of work, and one file of the output.

The cut depends on the inputs alone, so that an interrupted prediction finds the same blocks again.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.errors import DataError, InputError, LTNodeError
from ltnode.tables.parquet_rows import open_parquet, read_rows, require_parquet
from ltnode.trained import TrainedModel
from ltnode.trained.images import pillow
from ltnode.trained.inputs import ARRAY_SUFFIXES, batch_of_array, files_below, images_among, read_pixels
from ltnode.typing import Tensor

TABLE_ROWS = 50_000
IMAGES = 1_000
MOST_BLOCKS = 1_000_000
"""Files of the output; what a file declares about itself may be wrong."""


@dataclass(frozen=True)
class Block:
    """A part of the inputs.

    Attributes:
        name: File name of its predictions.
        files: One Parquet file, or several images.
        start: First row in the Parquet file.
        rows: Number of rows, or of images.
    """

    name: str
    files: tuple[str, ...]
    start: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """The block as plain values; ``Block.of`` reads them."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Block:
        """Make a block from plain values."""
        return cls(str(values["name"]), tuple(values["files"]), int(values["start"]), int(values["rows"]))


@dataclass(frozen=True)
class BlockInputs:
    """The raw inputs of a block.

    Attributes:
        names: Name of the file of every input.
        rows: Position of every input in its file.
        raw: The usable inputs.
        usable: Positions of the usable inputs.
        errors: Why the others cannot be used, by position.
    """

    names: list[str]
    rows: NDArray[np.int64]
    raw: Tensor
    usable: NDArray[np.int64]
    errors: dict[int, str]


def find_blocks(inputs: Sequence[str], rows: int | None = None) -> list[Block]:
    """Cut inputs into blocks.

    Args:
        inputs: Folders of images or of Parquet files, Parquet files, or patterns such as ``data/*.parquet``.
        rows: Rows of a block; by default 50,000 of a table and 1,000 images.

    Raises:
        InputError: There are no such files, or a file is neither.
    """
    found = [file for entry in inputs for file in _files(str(Path(entry).absolute()))]
    named = Counter(found)
    if len(named) < len(found):
        [(twice, _)] = named.most_common(1)
        raise InputError(f"{twice} is named twice among the inputs; its rows would be doubled")
    tables = [file for file in found if is_table(file)]
    if tables and len(tables) < len(found):
        raise InputError("the inputs must be either Parquet files or images, not both; predict them one after the other")
    return _table_blocks(tables, rows or TABLE_ROWS) if tables else _image_blocks(found, rows or IMAGES)


def digest(blocks: Sequence[Block]) -> str:
    """What tells these inputs from others: names and sizes of the files, and the cut."""
    state = hashlib.sha256()
    for block in blocks:
        sizes = [os.stat(file).st_size for file in block.files]  # noqa: PTH116 (there may be millions of images)
        state.update(repr((block.name, block.files, sizes, block.start, block.rows)).encode())
    return state.hexdigest()


def read_block(block: Block, trained: TrainedModel, columns: Sequence[str] = ()) -> BlockInputs:
    """Read the inputs of a block; an input that cannot be used keeps its place, with the reason."""
    if is_table(block.files[0]):
        return _read_table(block, trained, columns)
    pillow("reading image files")
    read: list[NDArray[np.uint8]] = []
    usable, errors = [], {}
    for position, file in enumerate(block.files):
        try:
            read.append(read_pixels(file, trained.shape))
            usable.append(position)
        except LTNodeError as error:
            errors[position] = str(error)
    raw = torch.from_numpy(np.stack(read)) if read else torch.empty(0, *trained.shape)
    return BlockInputs(list(block.files), np.zeros(len(block.files), np.int64), raw, np.array(usable, np.int64), errors)


def is_table(file: str) -> bool:
    """Whether a file holds rows, and not an image."""
    return file.lower().endswith(".parquet")


def _files(entry: str) -> list[str]:
    if Path(entry).is_dir():
        return _files_of_folder(entry)
    matches = sorted(glob.glob(entry))  # noqa: PTH207 (the pattern may begin with a folder)
    if not matches:
        raise InputError(f"--input must be a folder, a Parquet file or a pattern of them; there is no {entry}")
    found = [file for match in matches for file in (_files_of_folder(match) if os.path.isdir(match) else [match])]  # noqa: PTH112
    arrays = [file for file in found if file.lower().endswith(ARRAY_SUFFIXES)]
    if arrays:
        raise InputError(f"--input takes Parquet files and images, not {arrays[0]}; use: ltnode predict RUN {arrays[0]}")
    return found


def _files_of_folder(folder: str) -> list[str]:
    found = list(files_below(folder))
    return [file for file in found if is_table(file)] or images_among(found, folder)


def _table_blocks(tables: Sequence[str], rows: int) -> list[Block]:
    parquet = require_parquet("cluster", "batch prediction")
    blocks: list[Block] = []
    for number, file in enumerate(tables):
        try:
            total = parquet.read_metadata(file).num_rows
        except (OSError, ValueError) as error:
            raise InputError(f"{file} is not a Parquet file: {error}") from error
        if len(blocks) + total / rows > MOST_BLOCKS:
            raise InputError(f"{file} declares {total:,} rows, which would be more than {MOST_BLOCKS:,} files of {rows:,} rows")
        for start in range(0, total, rows):
            name = f"part-{number:05d}-{start // rows:05d}.parquet"
            blocks.append(Block(name, (file,), start, min(rows, total - start)))
    return blocks


def _image_blocks(images: Sequence[str], size: int) -> list[Block]:
    return [
        Block(
            f"part-{start // size:05d}.parquet",
            tuple(images[start : start + size]),
            start,
            len(images[start : start + size]),
        )
        for start in range(0, len(images), size)
    ]


def _read_table(block: Block, trained: TrainedModel, columns: Sequence[str]) -> BlockInputs:
    file = open_parquet(block.files[0], memory_map=True)
    schema, names = trained.schema, [str(name) for name in file.schema_arrow.names]
    wanted = list(columns) or (names if schema is None else [column.name for column in schema.columns])
    if missing := [name for name in wanted if name not in names]:
        raise InputError(f"{block.files[0]} has no column {missing[0]!r}; it has {', '.join(names)}")
    try:
        array = read_rows(file, wanted, block.start, block.rows)
        raw = _table_tensor(array, trained) if schema is None else torch.from_numpy(schema.encode(array.to_pandas()).x)
    except (InputError, DataError) as error:
        raise InputError(f"{block.files[0]}: {error}") from error
    finite = torch.isfinite(raw.flatten(1)).all(dim=1) if raw.is_floating_point() else torch.ones(len(raw), dtype=torch.bool)
    errors = {int(position): "NaN, infinity or nothing in a column; impute it" for position in torch.nonzero(~finite)}
    rows = np.arange(block.start, block.start + block.rows, dtype=np.int64)
    return BlockInputs([block.files[0]] * block.rows, rows, raw[finite], torch.nonzero(finite)[:, 0].numpy(), errors)


def _table_tensor(table: Any, trained: TrainedModel) -> Tensor:
    """Rows as raw inputs: one column per number, or one column of lists with all numbers of an input."""
    import pyarrow as arrow

    wanted = int(np.prod(trained.shape))
    if table.num_columns == 1 and arrow.types.is_list(table.column(0).type) | arrow.types.is_fixed_size_list(
        table.column(0).type
    ):
        values = table.column(0).combine_chunks()
        numbers = values.flatten().to_numpy(zero_copy_only=False)
        if len(numbers) != wanted * len(values):
            raise InputError(
                f"its lists must have {wanted} numbers each, for inputs of shape {trained.shape}, and none may be empty"
            )
        array = numbers.reshape(len(values), *trained.shape)
        return batch_of_array(array, trained.shape) if trained.is_image else torch.from_numpy(array.astype(np.float64))
    if table.num_columns != wanted or trained.is_image:
        kind = "one column of lists with the pixels" if trained.is_image else f"{wanted} columns"
        raise InputError(f"the model needs {kind}, not {table.num_columns} columns; name them with --columns a,b,c")
    try:
        columns = [_numbers(table.column(i)) for i in range(table.num_columns)]
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
        raise InputError(f"its columns must be numbers: {error}") from error
    return torch.from_numpy(np.stack(columns, axis=1))


def _numbers(column: Any) -> NDArray[np.float64]:
    """A column of an Arrow table as numbers; text is read as such, each different one once."""
    import pyarrow as arrow

    parts = [
        part.dictionary.cast(arrow.float64()).take(part.indices) if hasattr(part, "dictionary") else part.cast(arrow.float64())
        for part in column.chunks
    ]
    numbers: NDArray[np.float64] = arrow.chunked_array(parts).to_numpy()
    return numbers
