"""Results as typed rows, and the JSON file that stores them with their provenance.

``{"format": 1, "kind": "evaluation", "made_with": {...}, "protocols": {name: {"provenance": {...}, "rows": [...]}}}``

``made_with`` is everything that determines the numbers (weights, data, options): a file is continued only if it is the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.checks import is_finite_number
from ltnode.errors import CheckpointError, ConfigError
from ltnode.training.run_config import check_format

FORMAT = 1

Value = float | tuple[float, ...]
"""A number; or a curve, whose abscissae are ``extra["x"]``."""


@dataclass(frozen=True)
class Cost:
    """Cost of the predictions behind a number.

    Attributes:
        evaluations: Mean number of field evaluations per batch; None for a model without a solve.
        seconds_per_1000: Seconds of prediction per 1,000 examples.
        peak_memory_bytes: Peak memory on the device; None if it cannot be measured (CPU).
    """

    evaluations: float | None
    seconds_per_1000: float
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class ResultRow:
    """One number, or one curve, of one model under one protocol.

    Attributes:
        model: Name of the model, as in `ltnode.build`.
        data: Name of the data set.
        preset: Preset that the model was built with; None for a model made of custom parts.
        seed: Seed of the training; None if unknown.
        protocol: Name of the protocol.
        metric: Name of the metric.
        value: The number, or the curve over ``extra["x"]``.
        n: Number of examples behind it.
        setting: Values that the protocol varied: angle, epsilon, score, ...
        draw_seed: Seed of the end-times; None if they are not random.
        extra: Further information, as JSON types.
        cost: Cost of the predictions; ignored in comparisons, because times vary from run to run.
    """

    model: str
    data: str
    preset: str | None
    seed: int | None
    protocol: str
    metric: str
    value: Value
    n: int
    setting: Mapping[str, Any] = field(default_factory=dict)
    draw_seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    cost: Cost | None = field(default=None, compare=False)

    @property
    def number(self) -> float:
        """The value of a row that is not a curve."""
        if isinstance(self.value, tuple):
            raise TypeError(f"{self.protocol}/{self.metric} is a curve of {len(self.value)} values, not a number")
        return self.value

    @property
    def curve(self) -> tuple[float, ...]:
        """The values of a row that is a curve."""
        if not isinstance(self.value, tuple):
            raise TypeError(f"{self.protocol}/{self.metric} is a number, not a curve")
        return self.value

    def to_json(self) -> dict[str, Any]:
        """The row as JSON types; NaN becomes null."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ResultRow:
        """The row that `to_json` wrote."""
        content = dict(values)
        value = content["value"]
        content["value"] = tuple(_number(v) for v in value) if isinstance(value, list) else _number(value)
        content["cost"] = None if content.get("cost") is None else Cost(**content["cost"])
        row = cls(**content)
        _check(row)
        return row


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _check(row: ResultRow) -> None:
    """Require the types of a row, which anybody may have written; a ValueError says what is wrong."""
    words = (row.model, row.data, row.protocol, row.metric, "" if row.preset is None else row.preset)
    counts = (row.n, 0 if row.seed is None else row.seed, 0 if row.draw_seed is None else row.draw_seed)
    if not all(isinstance(word, str) for word in words) or not all(type(count) is int for count in counts):
        raise ValueError("model, data, protocol, metric and preset must be texts, and n and the seeds integers")
    if not isinstance(row.setting, dict) or not all(_is_setting(*entry) for entry in row.setting.items()):
        raise ValueError("setting must be a table of texts and numbers")
    if not isinstance(row.extra, dict) or not isinstance(row.extra.get("variant", ""), str):
        raise ValueError("extra must be a table, and its variant a text")
    if isinstance(row.value, tuple):
        x = row.extra.get("x")
        if not isinstance(x, list) or not x or len(x) != len(row.value) or not all(map(is_finite_number, x)):
            raise ValueError("the extra of a curve must hold x, as many numbers as the curve has values")
    if row.cost is not None and not all(value is None or is_finite_number(value) for value in dataclasses.astuple(row.cost)):
        raise ValueError("a cost must consist of numbers")


def _is_setting(name: str, value: Any) -> bool:
    if name == "interval" and isinstance(value, list | tuple):
        return all(map(is_finite_number, value))
    return isinstance(value, str | int | float | None)


def _plain(value: Any) -> Any:
    """Replace tuples by lists, and numbers that JSON cannot represent by None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class ResultFile:
    """Reads and extends one file of results; every write leaves a complete file behind.

    Args:
        path: Path of the file.
        made_with: Everything that determines the numbers, as JSON types.
        overwrite: Start the file again instead of continuing it.

    Raises:
        CheckpointError: The file is damaged or is not a file of results.
        ConfigError: The file holds results of another model, other data or other options.
    """

    def __init__(self, path: Path, made_with: Mapping[str, Any], overwrite: bool = False) -> None:
        self.path = path
        self._content: dict[str, Any] = {
            "format": FORMAT,
            "kind": "evaluation",
            "made_with": _plain(made_with),
            "protocols": {},
        }
        if not path.exists() or overwrite:
            return
        existing = _read(path)
        differences = _differences(existing["made_with"], self._content["made_with"])
        if differences:
            raise ConfigError(
                f"{path} holds results of another evaluation: {'; '.join(differences)}. Evaluate with the same settings, choose "
                "another file, or start again with overwrite=True (--overwrite)"
            )
        self._content = existing

    def done(self, protocol: str) -> list[ResultRow] | None:
        """The rows of a finished protocol; None if it has not been run."""
        part = self._content["protocols"].get(protocol)
        return None if part is None else _rows(self.path, part["rows"])

    def add(self, protocol: str, rows: Iterable[ResultRow], provenance: Mapping[str, Any]) -> None:
        """Record a finished protocol."""
        self._content["protocols"][protocol] = {"provenance": _plain(provenance), "rows": [row.to_json() for row in rows]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.write_error(self.path, error) from error
        files.write_json(self.path, self._content)


def read_rows(path: str | Path) -> list[ResultRow]:
    """Read all rows of a file of results.

    Raises:
        CheckpointError: The file is missing, damaged, or not a file of results.
    """
    path = Path(path)
    return [row for part in _read(path)["protocols"].values() for row in _rows(path, part["rows"])]


def read_provenance(path: str | Path) -> dict[str, dict[str, Any]]:
    """Provenance of the rows of each protocol and, under ``made_with``, everything that determines all of them."""
    content = _read(Path(path))
    return {"made_with": content["made_with"], **{name: part["provenance"] for name, part in content["protocols"].items()}}


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = files.read_json(path, _is_evaluation, "a folder with results of `ltnode evaluate`")
    check_format(path, content.get("format"), FORMAT)
    return content


def _is_evaluation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") == "evaluation"
        and isinstance(value.get("protocols"), dict)
        and isinstance(value.get("made_with"), dict)
        and isinstance(value["made_with"].get("options", {}), dict)
        and all(_is_part(part) for part in value["protocols"].values())
    )


def _is_part(value: Any) -> bool:
    """Whether a value has the rows of a protocol, and a provenance in which what reports show is text or a number."""
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list) or not isinstance(value.get("provenance"), dict):
        return False
    shown = value["provenance"]
    return isinstance(shown.get("git_commit", ""), str | None) and is_finite_number(shown.get("wall_time_s", 0.0))


def _rows(path: Path, rows: Any) -> list[ResultRow]:
    try:
        return [ResultRow.from_json(row) for row in rows]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged: a row cannot be read ({error}); restore it from a copy or evaluate again"
        ) from error


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    differences = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            differences += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            differences.append(f"{prefix}{key}: {before!r} -> {after!r}")
    return differences
