"""Writes the corpus: small valid files of every format, and files that got through in the past. Run it after a format changes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from serve.attack_files import progressive_bomb

import ltnode
from fuzz.targets import BOUNDARY, CORPUS, estimator_folder
from ltnode.data.origin import Origin
from ltnode.hub import pack_models
from ltnode.tables import Schema
from ltnode.training import tensor_file


def write(target: str, name: str, data: bytes) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(data)


def images() -> None:
    from PIL import Image

    pixels = np.arange(9 * 7 * 3, dtype=np.uint8).reshape(9, 7, 3)
    for suffix, file_format, mode in (
        ("png", "PNG", "RGB"),
        ("palette.png", "PNG", "P"),
        ("deep.png", "PNG", "I;16"),
        ("jpg", "JPEG", "RGB"),
        ("bmp", "BMP", "RGB"),
        ("gif", "GIF", "P"),
        ("webp", "WEBP", "RGB"),
        ("tif", "TIFF", "RGB"),
    ):
        file = io.BytesIO()
        Image.fromarray(pixels).convert("L" if mode == "I;16" else mode).convert(mode).save(file, file_format)
        write("images", f"small.{suffix}", file.getvalue())
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", progressive=True)
    write("images", "progressive.jpg", file.getvalue())
    write("images", "scans.jpg", progressive_bomb(2, 64))


def arrays() -> None:
    for name, array in (
        ("u1", np.zeros((2, 1, 4, 4), np.uint8)),
        ("f4", np.zeros((4, 4), "f4")),
        ("i8", np.arange(16).reshape(4, 4)),
    ):
        file = io.BytesIO()
        np.save(file, array)
        write("npy", f"{name}.npy", file.getvalue())
    write("csv", "table.csv", b"a,b,c\n1,2,3\n4.5,-1e3,0\n")
    write("csv", "tabs.tsv", b"1\t2\t3\r\n\r\n4\t5\t6")
    plain = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4) + bytes(24)
    write("idx", "plain", plain)
    write("idx", "packed.gz", gzip.compress(plain, mtime=0))
    for protocol in (2, 4):
        array = np.zeros((2, 3072), np.uint8)
        write("pickle", f"protocol{protocol}", _old_names(pickle.dumps({b"data": array, b"labels": [1, 2]}, protocol)))
    write("pickle", "memo", b"\x80\x02Nr\x00\x00\x00\x10.")
    from scipy.io import savemat

    for packed in (False, True):
        file = io.BytesIO()
        savemat(file, {"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.array([[1], [10]])}, do_compression=packed)
        write("mat", f"packed-{packed}.mat", bytes(116) + file.getvalue()[116:])
    tensors = {"model.w": torch.arange(6.0).reshape(2, 3), "rng": torch.arange(4, dtype=torch.uint8)}
    write("safetensors", "two.safetensors", tensor_file.to_bytes(tensors))


def _old_names(data: bytes) -> bytes:
    """The names of modules as in the official batches, which an old NumPy wrote; their lengths are equal."""
    return data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _schema() -> dict[str, Any]:
    """A schema with two features and three classes, like the model of the other documents."""
    table = {"a": np.arange(12) * 0.5, "b": np.array(["yes", "no"] * 6), "y": np.array(["p", "q", "r"] * 4)}
    return Schema.infer(table, "y").to_json()


def tables() -> None:
    """Small tables, with text and a date; results, a log, and the manifest of a stored run."""
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {"a": [0.5, None, 2.0] * 4, "b": ["x", "y", None] * 4, "when": ["2024-01-31"] * 12, "y": [1, 2, 3] * 4}
    for name, options in (("plain", {"use_dictionary": False, "compression": "none"}), ("packed", {"compression": "zstd"})):
        file = io.BytesIO()
        parquet.write_table(arrow.table(columns), file, row_group_size=5, **options)
        write("parquet", f"{name}.parquet", file.getvalue())
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        file = io.BytesIO()
        save(file, x=np.zeros((4, 2)), y=np.arange(4), name=np.array(list("abcd")))
        write("npz", f"{name}.npz", file.getvalue())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("x.npy"), b"not an array")
    write("npz", "text.npz", file.getvalue())
    dates = {
        "a": np.arange(12) * 0.5,
        "b": ["x", "y"] * 6,
        "when": [f"2024-01-{day:02d}" for day in range(1, 13)],
        "y": ["p", "q", "r"] * 4,
    }
    write(
        "schema",
        "dates.json",
        json.dumps(Schema.infer({k: np.array(v, object) for k, v in dates.items()}, "y").to_json()).encode(),
    )
    row = {"a": 1.5, "b": "x", "when": "2024-01-31"}
    write("rows", "row.json", json.dumps({"rows": [row]}).encode())
    write(
        "rows", "zones.json", json.dumps({"rows": [{**row, "when": "0001-01-01T00:00:00+14:00"}, {**row, "a": "1e300"}]}).encode()
    )
    write(
        "sweep",
        "grid.toml",
        b'model = "lt-node"\ndata = "synthetic"\nseeds = [0, 1]\n[train]\nepochs = 2\n[search]\nlr = [0.01, 0.003]\n',
    )
    write(
        "sweep",
        "random.toml",
        b'model = "node"\ndata = ["synthetic"]\nstrategy = "random"\ntrials = 3\n'
        b"[search]\nlr = { low = 0.001, high = 0.1, log = true }\n",
    )
    written = hashlib.sha256(b"{}").hexdigest()
    write(
        "manifest",
        "two.json",
        json.dumps({"files": {"config.json": {"sha256": written}, "a/b.json": {"sha256": written}}}).encode(),
    )
    write("manifest", "outside.json", json.dumps({"files": {"../outside": {"sha256": written}}}).encode())


def records() -> None:
    """The results and the log of a small run."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        config = ltnode.TrainConfig(epochs=2, batch_size=8, log_every=1, limit=40, validation_fraction=0.2)
        data = ltnode.data.load("synthetic")
        ltnode.fit(ltnode.build("lt-node", data, seed=0, width=4), data, config, out=folder)
        ltnode.evaluate(folder, out=folder / "evaluation.json", limit=20)
        write("evaluation", "regression.json", (folder / "evaluation.json").read_bytes())
        write("results", "run.json", (folder / "results.json").read_bytes())
        for number, line in enumerate((folder / "metrics.jsonl").read_bytes().splitlines()[:2]):
            write("metrics", f"line{number}.json", line)
    row = {
        "model": "lt-node",
        "data": "mnist",
        "preset": "default",
        "seed": 0,
        "protocol": "clean",
        "metric": "error",
        "value": 0.1,
    }
    row |= {"n": 20, "setting": {}, "draw_seed": None, "extra": {}, "cost": {"evaluations": 7.0, "seconds_per_1000": 1.0}}
    rows = [row, {**row, "metric": "error", "setting": {"statistic": "std over draws"}, "extra": {"mean": 0.1}}]
    rows.append({**row, "protocol": "ood", "metric": "auroc", "setting": {"ood": "svhn", "score": "distance"}})
    rows.append({**row, "metric": "reliability", "value": [0.1, 0.2], "extra": {"x": [0.0, 0.5]}})
    part = {"provenance": {"version": "1", "git_commit": "a" * 40, "wall_time_s": 1.0, "device": "cpu"}, "rows": rows}
    content = {"format": 1, "kind": "evaluation", "made_with": {"options": {"draw": 10}}, "protocols": {"clean": part}}
    write("evaluation", "images.json", json.dumps(content).encode())


def documents() -> None:
    spec = ltnode.InputSpec((2,), "classification", 3)
    model = ltnode.build("lt-node", spec, seed=0, width=4)
    data = {
        "name": "x",
        "input_shape": [2],
        "n_classes": 3,
        "class_names": ["a", "b", "c"],
        "normalise": {"mean": [0], "std": [1]},
    }
    run = {
        "format": 1,
        "kind": "run",
        "model": model.spec,
        "train": ltnode.TrainConfig().to_json(),
        "data": {**data, "normalise": None},
    }
    write("config", "saved.json", json.dumps({"format": 1, "kind": "model", "model": model.spec}).encode())
    write("config", "run.json", json.dumps(run).encode())
    schema = _schema()
    write("schema", "schema.json", json.dumps(schema).encode())
    origin = Origin("table", "sales.csv", "0" * 64).to_json()
    write("config", "table.json", json.dumps({**run, "data": {**data, "schema": schema, "origin": origin}}).encode())
    write("table", "numbers.csv", b"a,b,price\n1,x,2.5\n2,,3\n")
    write("table", "decimal-commas.csv", b"a;price\n1,5;2,5\n2;3\n")
    point = {"format": 1, "coverage": 0.95, "entropy_threshold": 1.0, "ood_score": "max_probability", "ood_threshold": 0.3}
    point |= {"ood_keeps": 0.95, "n": 10, "data": "x", "accuracy": 0.9, "accuracy_kept": 0.95, "samples": 10, "weights": None}
    write("estimator", "table.json", (estimator_folder() / "estimator.json").read_bytes())
    write("operating_point", "point.json", json.dumps(point).encode())
    chosen = {name: value for name, value in point.items() if not name.startswith("ood_")}
    write("operating_point", "point2.json", json.dumps({**chosen, "format": 2, "false_alarm_rate": 0.05}).encode())
    record = {"format": 1, "n": 19, "data": "19 examples", "weights": None, "smallest_rate": 0.05}
    write("calibration", "record.json", json.dumps(record).encode())
    with tempfile.TemporaryDirectory() as folder:
        ltnode.save(model, Path(folder) / "zoo" / "lt-node-points")
        pack_models(Path(folder) / "zoo", Path(folder) / "out")
        write("models_index", "index.json", (Path(folder) / "out" / "index.json").read_bytes())
        write("models_archive", "model.zip", (Path(folder) / "out" / "lt-node-points.zip").read_bytes())
    solver = model.solver_state()
    log = {"names": ["loss"], "sums": [1.0], "steps": 2, "solves": 2, "work": [1, 0, 7]}
    state = {"epoch": 2, "position": 0, "metrics_bytes": 10, "log": log, "solver": solver, "seconds": 1.5}
    payload = {"step": 6, "run": "abc", "tensors_sha256": "0" * 64, "state": state}
    write("state", "state.json", json.dumps(payload).encode())
    write("settings", "config.toml", b"epochs = 3\nlr = 0.1\nmilestones = [1, 2]\n[role_lr]\nvariational = 0.01\n")
    write("settings", "preset.toml", b'model = "lt-node"\ndata = "synthetic"\npreset = "paper"\n')
    write("requests", "vector.json", b'{"inputs": [[0.5, 1], [2, 3]], "model": "x", "samples": 3}')
    write("requests", "rows.json", b'{"rows": [{"a": 1.5, "b": "x", "c": null, "d": true}], "samples": 3}')
    write("requests", "row.json", b'{"row": {"a": 1.5, "b": "x"}, "points": 5}')
    write("requests", "image.json", b'{"images": ["aGVsbG8="], "samples": 3}')
    write("requests", "sweep.json", b'{"models": ["a", "b"], "angles": [0, 15], "sample": "digit-3"}')
    write("requests", "path.json", b'{"input": [1, 2], "points": 5, "change": {"rotation": 30, "noise": 0.1, "seed": 1}}')
    part = b"\r\nContent-Disposition: form-data; name="
    form = b"--" + BOUNDARY + part + b'"file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\nabc\r\n'
    form += b"--" + BOUNDARY + part + b'"samples"\r\n\r\n3\r\n--' + BOUNDARY + b"--\r\n"
    write("multipart", "form", form)
    write("multipart", "no-file", b"--" + BOUNDARY + part + b'"model"\r\n\r\nx\r\n--' + BOUNDARY + b"--\r\n")


if __name__ == "__main__":
    images()
    arrays()
    tables()
    records()
    documents()
    print(sum(path.stat().st_size for path in Path(CORPUS).rglob("*") if path.is_file()), "bytes")  # noqa: T201
