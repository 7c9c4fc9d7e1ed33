"""Result files of the image experiments: one small JSON file per cell, from which all tables, figures and verdicts are made.

``{"format": 1, "experiment": "images", "data", "model", "preset", "variant", "seed", "epochs", "precision", "kl_weight",
"learnt", "parameters", "training": provenance, "small_part", "weights_sha256", "protocols": {name: {"options", "provenance",
"cost", "rows"}}}``

The rows are those of `ltnode.evaluate` in a shorter form: numbers that differ only in an angle or a strength are one array,
evenly spaced abscissae are given by start, step and count, and numbers have 7 digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltnode.errors import DataError
from ltnode.evaluation import Cost, ResultRow
from ltnode.files import write_bytes
from ltnode.report.aggregate import mean_cost

FORMAT = 1
PREFIX = "images-"
_ALONG = ("angle", "epsilon", "severity")
"""Settings along which numbers are stored as an array."""
_WIDTH = 120


@dataclass(frozen=True, eq=False)
class ImageResult:
    """The content of one result file.

    Attributes:
        content: Parsed JSON.
    """

    content: Mapping[str, Any]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.content["data"])

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.content["model"])

    @property
    def preset(self) -> str:
        """Preset of model and training."""
        return str(self.content["preset"])

    @property
    def variant(self) -> str:
        """Name of further changes; empty for the unchanged preset."""
        return str(self.content["variant"] or "")

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return int(self.content["seed"])

    @property
    def protocols(self) -> Mapping[str, Mapping[str, Any]]:
        """Evaluated protocols by name; a colon and the name of the other data set follow if there is one."""
        protocols: Mapping[str, Mapping[str, Any]] = self.content["protocols"]
        return protocols

    def rows(self) -> list[ResultRow]:
        """All rows of `ltnode.evaluate`, up to rounding."""
        return [row for key, part in self.protocols.items() for row in self._rows(key.partition(":")[0], part)]

    def _rows(self, protocol: str, part: Mapping[str, Any]) -> Iterable[ResultRow]:
        cost = _cost(part["cost"])
        for entry in part["rows"]:
            for setting, value, extra in _expanded(entry):
                more = {**extra, "variant": self.variant} if self.variant else extra
                metric, n, names = entry["metric"], entry["n"], (self.model, self.data, self.preset, self.seed)
                yield ResultRow(
                    *names, protocol, metric, value, n, setting=setting, draw_seed=part["draw_seed"], extra=more, cost=cost
                )


def read_results(folder: Path) -> list[ImageResult]:
    """Read all results of a folder, ordered by name; quick trials are left out.

    Raises:
        DataError: A file is damaged or has another format.
    """
    found = [read_result(path) for path in sorted(folder.glob(f"{PREFIX}*.json"))]
    return [result for result in found if not result.content.get("trial")]


def read_result(path: Path) -> ImageResult:
    """Read one result.

    Raises:
        DataError: The file is missing or damaged, or has another format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["experiment"] != "images":
            raise ValueError("not a result of the image experiments in a known format")
        result = ImageResult(content)
        result.rows()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and run `ltnode reproduce images` again") from error
    return result


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write one result file, completely or not at all, with one row per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (_text(_shortened(content), 0) + "\n").encode())


def compact_rows(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Convert the rows of one protocol to entries of a result file."""
    entries: list[dict[str, Any]] = []
    arrays: dict[str, dict[str, Any]] = {}
    for row in rows:
        setting = dict(row.setting)
        along = next((key for key in _ALONG if key in setting), None)
        if isinstance(row.value, tuple):
            entries.append(_entry(row, setting, value=list(row.value), x=_spaced(row.extra["x"]), x_name=row.extra["x_name"]))
        elif along is None or row.extra:
            entries.append(_entry(row, setting, value=row.value, **({"extra": dict(row.extra)} if row.extra else {})))
        else:
            at = setting.pop(along)
            key = json.dumps([row.metric, row.n, setting], sort_keys=True)
            if key not in arrays:
                arrays[key] = _entry(row, setting, along=along, at=[], values=[])
                entries.append(arrays[key])
            arrays[key]["at"].append(at)
            arrays[key]["values"].append(row.value)
    return entries


def cost_of(rows: Sequence[ResultRow]) -> dict[str, Any] | None:
    """Mean cost of the predictions of a protocol, for a result file."""
    cost = mean_cost(rows)
    return None if cost is None else asdict(cost)


def _entry(row: ResultRow, setting: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    return {"metric": row.metric, **({"setting": dict(setting)} if setting else {}), "n": row.n, **values}


def _expanded(entry: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], float | tuple[float, ...], dict[str, Any]]]:
    setting = dict(entry.get("setting", {}))
    if "along" in entry:
        for at, value in zip(entry["at"], entry["values"], strict=True):
            yield {**setting, entry["along"]: at}, _number(value), {}
    elif "x" in entry:
        values = tuple(_number(value) for value in entry["value"])
        yield setting, values, {"x": _abscissae(entry["x"]), "x_name": entry["x_name"]}
    else:
        yield setting, _number(entry["value"]), dict(entry.get("extra", {}))


def _cost(values: Mapping[str, Any] | None) -> Cost | None:
    if values is None:
        return None
    work = values["evaluations"]
    return Cost(None if work is None else float(work), float(values["seconds_per_1000"]), values["peak_memory_bytes"])


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _spaced(x: Sequence[float]) -> Any:
    """Start, step and count of evenly spaced numbers; other numbers are returned unchanged."""
    if len(x) > 2:
        step = (x[-1] - x[0]) / (len(x) - 1)
        if all(abs(value - (x[0] + k * step)) <= 1e-6 * abs(step) for k, value in enumerate(x)):
            return {"start": x[0], "step": step, "count": len(x)}
    return list(x)


def _abscissae(x: Any) -> list[float]:
    return [x["start"] + k * x["step"] for k in range(x["count"])] if isinstance(x, dict) else [float(value) for value in x]


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def _text(value: Any, indent: int) -> str:
    """JSON for people and for git diffs: short values and arrays of numbers are on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    numbers = isinstance(value, list) and not any(isinstance(inner, dict | list) for inner in value)
    row = isinstance(value, dict) and "metric" in value
    if not isinstance(value, dict | list) or numbers or row or len(flat) + indent <= _WIDTH:
        return flat
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{margin}{json.dumps(key)}: {_text(inner, indent + 1)}" for key, inner in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(margin + _text(inner, indent + 1) for inner in value) + "\n" + " " * indent + "]"
