"""Batch prediction: millions of rows or images, block by block, on this machine or on a Ray cluster.

OUTPUT/part-*.parquet     the predictions of a block, one row per input
OUTPUT/prediction.json    what was predicted with what; a repeated command must agree with it, and does only what is missing
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.allocator import keep_memory
from ltnode.cluster.blocks import Block, digest, find_blocks
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Executor, Task, check_engine
from ltnode.cluster.predict_block import FUNCTION
from ltnode.errors import CheckpointError, ConfigError, InputError
from ltnode.tables.parquet_rows import require_parquet
from ltnode.trained import TrainedModel

RECORD = "prediction.json"
_AHEAD = 2
"""Blocks per worker that are submitted at the same time, so that none waits for this process."""


@dataclass(frozen=True)
class BatchOptions:
    """How to predict.

    Attributes:
        samples: End-times per prediction.
        columns: Columns of the tables that the model takes; empty takes all.
        block_rows: Rows of a block; None chooses.
        device: Device of the workers.
        false_alarm_rate: As in ``ltnode predict``.
    """

    samples: int = 10
    columns: tuple[str, ...] = ()
    block_rows: int | None = None
    device: str = "auto"
    false_alarm_rate: float | None = None


@dataclass(frozen=True)
class BatchResult:
    """What a batch prediction has done.

    Attributes:
        rows: Rows in the output.
        new_rows: Rows that this call has predicted.
        bad: Inputs, among the new ones, that could not be used; their rows say why.
        files: Number of files of the output.
    """

    rows: int
    new_rows: int
    bad: int
    files: int


def predict_batch(
    run: Path,
    inputs: Sequence[str | Block],
    output: Path,
    options: BatchOptions | None = None,
    *,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    threads: int = 1,
    here: bool = False,
    on_predicted: Callable[[int], None] = lambda done: None,
) -> BatchResult:
    """Predict all inputs with a trained model, or those that an interrupted call has left.

    Args:
        run: Run folder, which all workers must see.
        inputs: As in `find_blocks`, or the blocks that it returns.
        output: Folder of the output, which all workers must see.
        options: How to predict.
        engine: ``"local"`` or ``"ray"``.
        address: Address of the Ray cluster.
        jobs: Largest number of concurrent workers.
        threads: Threads of a worker.
        here: Whether this process is one of the local workers, so that N workers import torch N times only. It then keeps the
            memory that it frees, until it ends.
        on_predicted: Called with the number of rows that are done.

    Raises:
        InputError: There are no inputs, or a block cannot be predicted.
        ConfigError: The output folder holds the predictions of other inputs, or of another model.
    """
    check_engine(engine, address)
    require_parquet("cluster", "batch prediction")
    options, output = options or BatchOptions(), output.absolute()
    blocks = [entry for entry in inputs if isinstance(entry, Block)]
    blocks = blocks or find_blocks([str(entry) for entry in inputs], options.block_rows)
    todo = [block for block in blocks if not (output / block.name).exists()]
    total = sum(block.rows for block in blocks)
    done = total - sum(block.rows for block in todo)
    common = {
        "call": uuid.uuid4().hex,
        "run": str(run.absolute()),
        "output": str(output),
        "samples": options.samples,
        "device": options.device,
        "threads": threads,
        "columns": list(options.columns),
        "false_alarm_rate": options.false_alarm_rate,
    }
    if here and engine == "local":
        keep_memory()  # before there are other threads
    new = bad = 0
    with make_executor(engine, address=address, jobs=jobs, threads=threads, device=options.device, here=here) as executor:
        executor.prepare(len(todo))
        trained = TrainedModel.open(run, "cpu").with_false_alarm_rate(options.false_alarm_rate)
        _open_output(output, _description(trained, blocks, options))
        on_predicted(done)
        for answer in _answers([{**common, "block": block.to_json()} for block in todo], executor):
            new, bad = new + answer["rows"], bad + answer["bad"]
            on_predicted(done + new)
    files.remove_leftovers(output)
    return BatchResult(total, new, bad, len(blocks))


def _answers(work: list[dict[str, Any]], executor: Executor) -> Iterator[dict[str, Any]]:
    """Submit blocks as workers become free; the answers as they come, which are counts only."""
    waiting, running = list(reversed(work)), 0
    while waiting or running:
        while waiting and running < _AHEAD * executor.capacity:
            arguments = waiting.pop()
            executor.submit(Task(arguments["block"]["name"], FUNCTION, arguments))
            running += 1
        for outcome in executor.wait(10.0):
            running -= 1
            if outcome.status != "done":
                raise InputError(f"{outcome.name} could not be predicted: {outcome.error}")
            yield outcome.value


def _description(trained: TrainedModel, blocks: Sequence[Block], options: BatchOptions) -> dict[str, Any]:
    return {
        "format": 1,
        "model": trained.name,
        "weights": trained.weights_digest(),
        "samples": options.samples,
        "columns": list(options.columns),
        "false_alarm_rate": trained.false_alarm_rate,
        "inputs": digest(blocks),
        "blocks": len(blocks),
        "rows": sum(block.rows for block in blocks),
    }


def _open_output(output: Path, description: dict[str, Any]) -> None:
    """Begin in an empty folder, or require that the folder holds the same prediction."""
    record = output / RECORD
    output.mkdir(parents=True, exist_ok=True)
    if record.exists():
        existing = files.read_json(record, lambda value: isinstance(value, dict), "the output of a batch prediction")
        different = sorted(key for key, value in description.items() if existing.get(key) != value)
        if different:
            raise ConfigError(f"{output} holds another prediction (different: {', '.join(different)}): choose another --output")
        return
    if any(not entry.name.startswith(files.TEMPORARY) for entry in output.iterdir()):
        raise CheckpointError(f"{output} is not empty and holds no batch prediction; choose another --output")
    files.write_json(record, description)
