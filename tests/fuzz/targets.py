"""The readers of untrusted bytes: each takes any bytes, and returns or raises an error of ltnode."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ltnode
from fuzz.mutation import mutated_bytes, mutated_json
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.storage import RunStorage
from ltnode.cluster.trial import describe_run
from ltnode.data import formats
from ltnode.data.budget import Budget
from ltnode.errors import LTNodeError
from ltnode.hub.archive import unpack
from ltnode.hub.index import read_index
from ltnode.imagefiles.decode import LOCAL_FORMATS, UnusableImage, decode
from ltnode.imagefiles.header import header
from ltnode.report import tables
from ltnode.report.aggregate import Rows
from ltnode.report.published import Published
from ltnode.report.runs import read_runs
from ltnode.serve import Limits
from ltnode.serve.failures import ApiError
from ltnode.serve.parsing import RequestParser, parse_json
from ltnode.serve.requests import EffectRequest, PredictRequest, SweepRequest, TrajectoryRequest
from ltnode.serve.tables import _values, decode_rows, describe_columns
from ltnode.tables import Schema, as_table, read_table
from ltnode.tables.read import read_text
from ltnode.trained import TrainedModel
from ltnode.trained.inputs import _read_npy, batch_of_array, read_csv
from ltnode.training import TrainConfig, checkpoint, tensor_file
from ltnode.training.config_values import read_toml
from ltnode.training.convergence import not_converged
from ltnode.training.run import Run, RunFolder, read_log

CORPUS = Path(__file__).parent / "corpus"
REFUSALS = (LTNodeError, ApiError, UnusableImage)
"""What a reader may raise."""
BOUNDARY = b"----corpus"


@dataclass(frozen=True)
class Target:
    """A reader, and whether its inputs are mutated as JSON half of the time."""

    read: Callable[[bytes], object]
    is_json: bool = False

    def inputs(self, name: str, seed: int, index: int) -> bytes:
        """The input with a number: first the corpus itself, then mutations."""
        corpus = load_corpus(name)
        if index < len(corpus):
            return corpus[index]
        rng = random.Random(f"{name} {seed} {index}")
        data = rng.choice(corpus)
        if self.is_json and rng.random() < 0.7:
            return mutated_json(data, rng)
        return mutated_bytes(data, corpus, rng)


@cache
def load_corpus(name: str) -> list[bytes]:
    """The stored inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="ltnode-fuzz-"))


def _file(name: str, data: bytes) -> Path:
    path = _scratch() / name
    path.write_bytes(data)
    return path


@cache
def _model_folder() -> Path:
    spec = ltnode.InputSpec((2,), "classification", 3)
    return ltnode.save(ltnode.build("lt-node", spec, seed=0, width=4), _scratch() / "model")


def _run_folder_file(name: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        folder = _scratch() / f"with-{name}"
        if not folder.exists():
            shutil.copytree(_model_folder(), folder)
        (folder / name).write_bytes(data)
        return TrainedModel.open(folder)

    return read


@cache
def estimator_folder() -> Path:
    """A saved estimator for a table with a category and a missing cell."""
    import pandas

    X = pandas.DataFrame({"a": [0.5, None, 2.0, 3.5] * 5, "b": ["x", "y", "y", "z"] * 5})
    return ltnode.save(ltnode.LTNodeClassifier(max_epochs=1, width=4, random_state=0).fit(X, X["b"] == "y"), _scratch() / "table")


def _estimator(data: bytes) -> object:
    folder = _scratch() / "with-estimator"
    if not folder.exists():
        shutil.copytree(estimator_folder(), folder)
    (folder / "estimator.json").write_bytes(data)
    return ltnode.load(folder)


def _state(data: bytes) -> object:
    """A checkpoint whose state has a correct checksum, as a forger would write it."""
    folder = _scratch() / "step-0000000006"
    folder.mkdir(exist_ok=True)
    try:
        payload = json.loads(data)
        data = json.dumps({"sha256": checkpoint._checksum(payload), "payload": payload}).encode()
    except (ValueError, RecursionError, TypeError):
        pass  # the bytes themselves, then
    (folder / "state.json").write_bytes(data)
    (folder / "tensors.safetensors").write_bytes(load_corpus("safetensors")[0])
    return checkpoint.read(folder)


def _evaluation(data: bytes) -> object:
    """All tables of a report on the results of one run."""
    [run] = read_runs([_file("evaluation.json", data)])
    rows, published = Rows(run.rows), Published()
    return [
        *(make(rows, published) for make in (tables.generalisation_table, tables.ood_table, tables.entropy_table)),
        *(make(rows) for make in (tables.quality_table, tables.scores_table, tables.draws_table, tables.posterior_table)),
        *(tables.calibration_table(rows), tables.regression_table(rows, published)),
    ]


def _metrics(data: bytes) -> object:
    """A log that consists of one line, six times."""
    return not_converged(read_log(_file("metrics.jsonl", (data + b"\n") * 6)))


def _results(data: bytes) -> object:
    """What a run that is complete says about itself, as a sweep shows it."""
    folder = RunFolder(_file("results.json", data).parent)
    folder.status()
    run = Run(_table_model().model, TrainConfig(), folder.path, results=folder.read_results())
    return describe_run(run), repr(run)


def _sweep(data: bytes) -> object:
    """A specification; data sets of other names would be looked for on the disk."""
    table = read_toml(_file("sweep.toml", data))
    return SweepSpec.of({**table, "data": "synthetic"}) if "data" in table else SweepSpec.of(table)


def _manifest(data: bytes) -> object:
    """The newest manifest of a stored run, whose name has the digest that a forger would give it."""
    folder = _scratch() / "stored"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "objects").mkdir(parents=True)
    (folder / "objects" / hashlib.sha256(b"{}").hexdigest()).write_bytes(b"{}")
    (folder / f"manifest-00000001-{hashlib.sha256(data).hexdigest()}.json").write_bytes(data)
    into = folder / "restored"
    into.mkdir()
    restored = RunStorage(str(folder)).restore(into)
    assert not (_scratch() / "outside").exists(), "a file was written outside of the run folder"
    return restored


def _served(schema: Schema) -> TrainedModel:
    """A model of a table, of which only the columns matter."""
    spec = ltnode.InputSpec((len(schema.features),), "classification", 3)
    model = ltnode.build("node", spec, seed=0, width=4)
    return TrainedModel("table", None, model, spec.shape, "classification", ("p", "q", "r"), None, None, None, schema=schema)


@cache
def _table_model() -> TrainedModel:
    return _served(Schema.from_json(json.loads((CORPUS / "schema" / "dates.json").read_bytes())))


def _rows(data: bytes) -> object:
    """The rows of a request, encoded as the server does."""
    return decode_rows(parse_json(data, PredictRequest).table_rows, _table_model())


def _schema(data: bytes) -> object:
    """A schema, the form that the server makes of it, and the cells with which it shows the effect of every column."""
    schema = Schema.from_json(_document(data))
    if len(schema.features) > 1000:
        return schema
    trained = _served(schema)
    columns = describe_columns(trained) or []
    row = {column.name: column.typical for column in columns}
    for column in schema.columns:
        decode_rows([{**row, column.name: value} for value in _values(column, 7)] or [row], trained)
    return columns


def _npy(data: bytes) -> object:
    return batch_of_array(_read_npy(data), (1, 4, 4))


def _form(data: bytes) -> object:
    """A body of a form, as the server would receive it in parts."""
    from starlette.requests import Request

    async def parse() -> object:
        parts = [data[:100], data[100:]]

        async def receive() -> dict[str, Any]:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def in_thread(work: Callable[[], Any]) -> Any:
            return work()

        kind = b"multipart/form-data; boundary=" + BOUNDARY
        scope = {"type": "http", "method": "POST", "path": "/api/predict", "headers": [(b"content-type", kind)]}
        return await RequestParser(Limits(), [(1, 28, 28)], in_thread).parse_json_or_form(Request(scope, receive))

    return asyncio.run(parse())


def _request(data: bytes) -> object:
    schema = (PredictRequest, TrajectoryRequest, SweepRequest, EffectRequest)[len(data) % 4]
    return parse_json(data, schema)


def _document(data: bytes) -> Any:
    """A JSON document; bytes that are none are refused by the reader of run folders, which has a target of its own."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _settings(data: bytes) -> object:
    return TrainConfig.from_toml(_file("config.toml", data))


def _image(data: bytes) -> object:
    """Look at the header, and decode the file whatever the header says."""
    with suppress(UnusableImage):
        header(_file("image", data), 1_000_000, LOCAL_FORMATS)
    return decode(data, (3, 32, 32), 1_000_000, LOCAL_FORMATS)


TARGETS = {
    "images": Target(_image),
    "npy": Target(_npy),
    "csv": Target(lambda data: read_csv(data, (3,))),
    "idx": Target(lambda data: formats.read_idx(_file("idx", data), Budget(1 << 24))),
    "pickle": Target(lambda data: formats.read_cifar_python(data, "batch")),
    "mat": Target(lambda data: formats.read_svhn(_file("file.mat", data), Budget(1 << 24))),
    "table": Target(lambda data: as_table(read_text(data))),
    "parquet": Target(lambda data: as_table(read_table(_file("table.parquet", data)))),
    "npz": Target(lambda data: as_table(read_table(_file("table.npz", data)))),
    "evaluation": Target(_evaluation, is_json=True),
    "metrics": Target(_metrics, is_json=True),
    "results": Target(_results, is_json=True),
    "sweep": Target(_sweep),
    "manifest": Target(_manifest, is_json=True),
    "rows": Target(_rows, is_json=True),
    "schema": Target(_schema, is_json=True),
    "safetensors": Target(lambda data: tensor_file.from_bytes(data, Path("file"))),
    "config": Target(_run_folder_file("config.json"), is_json=True),
    "operating_point": Target(_run_folder_file("operating_point.json"), is_json=True),
    "calibration": Target(_run_folder_file("calibration.json"), is_json=True),
    "estimator": Target(_estimator, is_json=True),
    "state": Target(_state, is_json=True),
    "settings": Target(_settings),
    "models_index": Target(lambda data: read_index(data, "index.json"), is_json=True),
    "models_archive": Target(lambda data: unpack(data, "model.zip")),
    "multipart": Target(_form),
    "requests": Target(_request, is_json=True),
}


def check(target: Target, data: bytes) -> None:
    """Give a reader some bytes; anything but a result or a refusal is a finding and is raised."""
    try:
        target.read(data)
    except REFUSALS as refusal:
        assert str(refusal), "a refusal without a reason"


def clean_up() -> None:
    """Remove the files that the targets wrote."""
    shutil.rmtree(_scratch(), ignore_errors=True)
