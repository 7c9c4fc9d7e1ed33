"""Batch prediction as one would write it by hand: read the files, predict in batches, write the columns of ltnode predict.

    python benchmarks/plain_loop.py RUN INPUTS OUTPUT

It stops at the first bad file, cannot be continued, and uses one core. The files are as large as those of the command, and the
batches, too: smaller or larger ones are slower here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import torch
from PIL import Image
from pyarrow import parquet

from ltnode.trained import TrainedModel
from ltnode.trained.columns import prediction_columns

ROWS, ROWS_OF_A_BATCH = 50_000, 4096
IMAGES, IMAGES_OF_A_BATCH = 1_000, 512


def predicted(trained: TrainedModel, raw: torch.Tensor, batch: int) -> dict[str, Any]:
    """The columns of some inputs."""
    parts = []
    for start in range(0, len(raw), batch):
        x = trained.prepare(raw[start : start + batch])
        parts.append(prediction_columns(trained, trained.predict_inputs(x, 10), x))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write(names: list[str], rows: np.ndarray, columns: dict[str, Any], file: Path) -> None:
    """One file of the output."""
    table = {"input": names, "row": rows, "error": arrow.nulls(len(names), arrow.string()), **columns}
    parquet.write_table(arrow.table(table), file)


def predict_rows(trained: TrainedModel, inputs: Path, output: Path) -> None:
    for number, file in enumerate(sorted(inputs.glob("*.parquet"))):
        x = parquet.read_table(file)["x"].to_numpy()
        for start in range(0, len(x), ROWS):
            part = torch.tensor(x[start : start + ROWS])[:, None]
            columns = predicted(trained, part, ROWS_OF_A_BATCH)
            rows = np.arange(start, start + len(part))
            write([str(file)] * len(part), rows, columns, output / f"part-{number}-{start}.parquet")


def predict_images(trained: TrainedModel, inputs: Path, output: Path) -> None:
    files = sorted(inputs.rglob("*.png"))
    for start in range(0, len(files), IMAGES):
        part = files[start : start + IMAGES]
        pixels = np.stack([np.asarray(Image.open(file)) for file in part])[:, None]
        columns = predicted(trained, torch.tensor(pixels), IMAGES_OF_A_BATCH)
        names = [str(file) for file in part]
        write(names, np.zeros(len(part), np.int64), columns, output / f"part-{start}.parquet")


def main() -> None:
    run, inputs, output = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    output.mkdir(parents=True)
    trained = TrainedModel.open(run)
    (predict_images if trained.is_image else predict_rows)(trained, inputs, output)


if __name__ == "__main__":
    main()
