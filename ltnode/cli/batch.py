"""``ltnode predict --input ... --output DIR``: batch prediction from files to Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from ltnode.cli import console
from ltnode.cluster.batch_prediction import BatchOptions, predict_batch
from ltnode.cluster.blocks import find_blocks
from ltnode.progress import progress_bar

_ERROR = 2


def predict_files(
    run: Path,
    inputs: Sequence[str],
    output: Path,
    options: BatchOptions,
    engine: str,
    address: str | None,
    jobs: int | None,
    threads: int,
) -> None:
    """Predict, show the progress, and say where the files are; the exit status is 2 if an input could not be used."""
    blocks = find_blocks(inputs)
    advice = f"Finished blocks are in {output}: run the same command again to continue."
    with console.resumable(advice), progress_bar("predict", sum(block.rows for block in blocks), "rows") as report:
        result = predict_batch(
            run,
            blocks,
            output,
            options,
            engine=engine,
            address=address,
            jobs=jobs,
            threads=threads,
            here=True,
            on_predicted=report.completed,
        )
    kept = result.rows - result.new_rows
    before = f" ({kept} of them by an earlier call)" if kept else ""
    console.say(f"{result.rows} rows{before} are in {result.files} files in {output}")
    if result.bad:
        console.error(f"{result.bad} inputs could not be used; the column error of their rows says why")
        raise typer.Exit(_ERROR)
