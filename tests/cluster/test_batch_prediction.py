"""Batch prediction: the values of `TrainedModel.rows`, and every row exactly once, whatever happens in between."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sales_table import sales

import ltnode
from ltnode.cluster.batch_prediction import BatchOptions, predict_batch
from ltnode.cluster.blocks import find_blocks, read_block
from ltnode.cluster.predict_block import predict_block
from ltnode.errors import ConfigError, InputError
from ltnode.trained import TrainedModel

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = ltnode.data.load("synthetic")
    config = ltnode.train_preset("lt-node", "synthetic").replace(epochs=3, device="cpu")
    out = tmp_path_factory.mktemp("runs") / "points"
    ltnode.fit(ltnode.build("lt-node", data, seed=0, width=8), data, config, out)
    return out


@pytest.fixture
def tables(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Two Parquet files of 250 and 90 rows, whose row groups do not fit the blocks; one row holds NaN."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, n in enumerate((250, 90)):
        x = rng.normal(size=n)
        x[3] = np.nan if number else x[3]
        parquet.write_table(arrow.table({"id": np.arange(n), "x": x}), folder / f"{number}.parquet", row_group_size=70)
    return folder


OPTIONS = BatchOptions(columns=("x",), block_rows=60, device="cpu")


def read_output(folder: Path) -> dict[str, list[object]]:
    return arrow.concat_tables([parquet.read_table(file) for file in sorted(folder.glob("part-*.parquet"))]).to_pydict()


def test_predictions_are_those_of_the_trained_model(run: Path, tables: Path, tmp_path: Path) -> None:
    """Exactly the rows of ``ltnode predict`` for the inputs of each block; and the folder takes no other prediction afterwards.

    The reference gets the same batches, so that the two differ in how they are written down and in nothing else.
    """
    result = predict_batch(run, [str(tables / "*.parquet")], tmp_path / "out", OPTIONS, jobs=1)
    assert (result.rows, result.new_rows, result.bad, result.files) == (340, 340, 1, 7)
    found = read_output(tmp_path / "out")
    x = np.concatenate([parquet.read_table(tables / f"{n}.parquet")["x"].to_numpy() for n in (0, 1)])
    assert found["row"] == [*range(250), *range(90)]
    assert [Path(str(name)).name for name in found["input"]] == ["0.parquet"] * 250 + ["1.parquet"] * 90
    bad = 253
    assert "NaN" in str(found["error"][bad])
    assert found["mean"][bad] is None
    good = [position for position in range(340) if position != bad]
    trained, starts = TrainedModel.open(run, "cpu"), [*range(0, 250, 60), 250, 310, 340]
    cuts = [x[start:stop][np.isfinite(x[start:stop])] for start, stop in pairwise(starts)]
    rows = [row for part in cuts for row in trained.rows(torch.from_numpy(part)[:, None])]
    for name in ("mean", "std", "noise_std", "distance", "familiarity"):
        expected = [getattr(row, name) for row in rows]
        assert [found[name][position] for position in good] == expected
    assert [(found["low90"][p], found["high90"][p]) for p in good] == [row.interval for row in rows]
    assert [found["unfamiliar"][position] for position in good] == [row.unfamiliar for row in rows]
    assert [(found["t05"][p], found["t50"][p], found["t95"][p]) for p in good] == [row.end_time for row in rows]
    with pytest.raises(ConfigError, match=r"another prediction \(different: blocks, inputs, rows\)"):
        predict_batch(run, [str(tables / "0.parquet")], tmp_path / "out", OPTIONS, jobs=1)


def test_rows_of_an_own_table_are_encoded_by_its_schema(tmp_path: Path) -> None:
    """Exactly the rows of ``ltnode predict``, also where blocks begin inside of a row group; other columns may be there."""
    pandas = pytest.importorskip("pandas")
    data = ltnode.data.from_table(sales(150), "price", ignore=("id", "agent", "comment", "dear"))
    config = ltnode.train_preset("lt-node", data).replace(epochs=2, device="cpu")
    ltnode.fit(ltnode.build("lt-node", data, seed=0, width=8), data, config, tmp_path / "run")
    file = tmp_path / "new.parquet"
    sales(90, seed=1).drop(columns="price").to_parquet(file, row_group_size=25)
    predict_batch(tmp_path / "run", [str(file)], tmp_path / "out", BatchOptions(block_rows=90, device="cpu"), jobs=1)
    found = read_output(tmp_path / "out")
    trained = TrainedModel.open(tmp_path / "run", "cpu")
    rows = list(trained.rows(trained.read(file).raw))
    assert found["mean"] == [row.mean for row in rows] and found["familiarity"] == [row.familiarity for row in rows]
    blocks = find_blocks([str(file)], 30)
    parts = [read_block(block, trained).raw for block in blocks]
    torch.testing.assert_close(torch.cat(parts), trained.read(file).raw, rtol=0, atol=0)
    pandas.read_parquet(file).drop(columns="size").to_parquet(file)
    with pytest.raises(InputError, match="has no column 'size'; it has id, city"):
        read_block(find_blocks([str(file)])[0], trained)


def test_this_process_can_be_one_of_the_workers(run: Path, tables: Path, tmp_path: Path) -> None:
    """The files are those of worker processes, byte for byte, with this process alone and next to another one."""
    predict_batch(run, [str(tables)], tmp_path / "elsewhere", OPTIONS, jobs=1)
    for jobs in (1, 2):
        out = tmp_path / f"here-{jobs}"
        result = predict_batch(run, [str(tables)], out, OPTIONS, jobs=jobs, here=True)
        assert (result.rows, result.new_rows, result.bad) == (340, 340, 1)
        for file in (tmp_path / "elsewhere").glob("part-*"):
            assert (out / file.name).read_bytes() == file.read_bytes()


def test_a_mistake_in_this_process_ends_the_prediction(run: Path, tables: Path, tmp_path: Path) -> None:
    """The message is that of a worker process, and the thread of the worker is gone."""
    before = threading.active_count()
    with pytest.raises(InputError, match=r"could not be predicted: .*has no column 'y'; it has id, x"):
        predict_batch(run, [str(tables)], tmp_path / "out", BatchOptions(columns=("y",), device="cpu"), jobs=1, here=True)
    assert threading.active_count() == before


def test_a_model_that_was_trained_again_is_opened_again(run: Path, tables: Path, tmp_path: Path) -> None:
    """A process that predicts twice must not use the weights of the first time, although the folder is the same."""
    shutil.copytree(run, tmp_path / "run")
    predict_batch(tmp_path / "run", [str(tables)], tmp_path / "first", OPTIONS, jobs=1, here=True)
    other = TrainedModel.open(tmp_path / "run", "cpu").model
    with torch.no_grad():
        next(other.head.parameters()).mul_(2)  # type: ignore[operator, union-attr]
    shutil.rmtree(tmp_path / "run")
    ltnode.save(other, tmp_path / "run")
    predict_batch(tmp_path / "run", [str(tables)], tmp_path / "second", OPTIONS, jobs=1, here=True)
    assert read_output(tmp_path / "first")["mean"] != read_output(tmp_path / "second")["mean"]


@pytest.mark.posix
@pytest.mark.slow
def test_killed_and_repeated_gives_every_row_once(run: Path, tables: Path, tmp_path: Path) -> None:
    """A process that is killed in the middle leaves whole files only, and its successor predicts the rest only."""
    out = tmp_path / "out"
    program = (
        "from pathlib import Path; from ltnode.cluster.batch_prediction import *\n"
        f"predict_batch(Path({str(run)!r}), [{str(tables)!r}], Path({str(out)!r}), "
        "BatchOptions(columns=('x',), block_rows=10, device='cpu'), jobs=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 60
    while not list(out.glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    options = BatchOptions(columns=("x",), block_rows=10, device="cpu")
    time.sleep(1.0)  # the worker of the killed process ends when its standard input closes
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*")}
    assert before
    result = predict_batch(run, [str(tables)], out, options, jobs=1)
    assert result.rows == 340
    assert result.new_rows == 340 - sum(parquet.read_metadata(out / name).num_rows for name in before)
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    found = read_output(out)
    assert sorted(zip(found["input"], found["row"], strict=True)) == sorted(  # type: ignore[type-var]
        (str(tables / f"{number}.parquet"), row) for number, n in enumerate((250, 90)) for row in range(n)
    )
    assert not list(out.glob(".tmp-*"))


def test_images_of_a_folder_keep_their_order_and_bad_ones_their_place(tmp_path: Path, rng: np.random.Generator) -> None:
    image = pytest.importorskip("PIL.Image")
    spec = ltnode.InputSpec((1, 8, 8), "classification", 3)
    model = ltnode.build("lt-node", spec, seed=0)
    ltnode.save(model, tmp_path / "model")
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(7):
        image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"not an image")
    arguments = {"call": "", "samples": 10, "columns": [], "false_alarm_rate": None, "device": "cpu", "threads": 1}
    (folder / "list.txt").write_text("not an input")
    assert find_blocks([str(tmp_path / "ima*")], 3) == find_blocks([str(folder)], 3)
    answers = [
        predict_block({**arguments, "run": str(tmp_path / "model"), "output": str(tmp_path), "block": block.to_json()})
        for block in find_blocks([str(folder)], 3)
    ]
    assert answers == [{"rows": 3, "bad": 0}, {"rows": 3, "bad": 1}, {"rows": 1, "bad": 0}]
    found = read_output(tmp_path)
    assert [Path(str(name)).name for name in found["input"]] == [f"{number}.png" for number in range(7)]
    assert [reason is not None for reason in found["error"]] == [number == 3 for number in range(7)]
    total = sum(np.array([found[f"p({label})"][0] for label in range(3)], dtype=float))
    assert total == pytest.approx(1.0, abs=1e-6)
    trained = TrainedModel.open(tmp_path / "model")
    expected = [None if n == 3 else trained.rows(trained.read(folder / f"{n}.png").raw)[0].entropy for n in range(7)]
    # Images in one batch may be summed in another order than alone.
    assert found["entropy"] == [None if value is None else pytest.approx(value, abs=1e-6) for value in expected]


def test_mistakes_are_explained(run: Path, tables: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no .*missing"):
        find_blocks([str(tmp_path / "missing-*.parquet")])
    with pytest.raises(InputError, match="named twice"):
        find_blocks([str(tables), str(tables / "0.parquet")])
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"takes Parquet files and images, not .*x\.npy; use: ltnode predict RUN"):
        find_blocks([str(tmp_path / "*.npy")])
    block, trained = find_blocks([str(tables)])[0], TrainedModel.open(run, "cpu")
    with pytest.raises(InputError, match="the model needs 1 columns, not 2 columns; name them with --columns"):
        read_block(block, trained)
    with pytest.raises(InputError, match="has no column 'y'; it has id, x"):
        read_block(block, trained, ("y",))


@pytest.mark.ray
def test_ray_gives_the_same_files(run: Path, tables: Path, tmp_path: Path) -> None:
    """Both engines write the same bytes, since blocks and batches are the same."""
    ray = pytest.importorskip("ray")
    predict_batch(run, [str(tables)], tmp_path / "local", OPTIONS, jobs=1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        result = predict_batch(run, [str(tables)], tmp_path / "ray", OPTIONS, engine="ray")
        assert (result.rows, result.new_rows, result.bad) == (340, 340, 1)
        (tmp_path / "ray" / "part-00000-00002.parquet").unlink()
        assert predict_batch(run, [str(tables)], tmp_path / "ray", OPTIONS, engine="ray").new_rows == 60
    finally:
        ray.shutdown()
    for file in (tmp_path / "local").glob("part-*"):
        assert parquet.read_table(file).equals(parquet.read_table(tmp_path / "ray" / file.name))
