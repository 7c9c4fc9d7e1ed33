"""Own data of the user on the command line: which option says what about them, and what is said about them before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ltnode.cli import console
from ltnode.data import Dataset
from ltnode.errors import ConfigError
from ltnode.tables import KINDS, Column, Schema
from ltnode.tables.schema import shortened
from ltnode.training.own_tables import OwnTable

_SHOWN_CATEGORIES = 4


@dataclass(frozen=True)
class TableOptions:
    """What the command line says about a table; see the help of ``ltnode train``."""

    target: str | None = None
    task: str | None = None
    group: str | None = None
    ignore: Sequence[str] = ()
    kinds: Sequence[str] = ()
    test: Path | None = None
    test_fraction: float | None = None

    def require_none(self, data: str | None) -> None:
        """Require that no option is given, as the data are no table.

        Raises:
            ConfigError: One is given.
        """
        names = ("target", "task", "group", "ignore", "kind", "test", "test-fraction")
        given = [name for name, value in zip(names, vars(self).values(), strict=True) if value not in (None, ())]
        if given:
            raise ConfigError(f"--{given[0]} belongs to tables (.csv, .tsv, .parquet, .npz), and --data {data} is none")

    def of(self, path: str) -> OwnTable:
        """What is said about a table.

        Raises:
            ConfigError: An option is missing, or is not as required.
        """
        if self.target is None:
            raise ConfigError(
                f"--target is missing: name the column to predict, as in: ltnode train --data {path} --target COLUMN"
            )
        kinds = tuple(_kind(text) for text in self.kinds)
        test = None if self.test is None else str(self.test)
        return OwnTable(self.target, self.task, self.group, tuple(self.ignore), kinds, test, self.test_fraction)


def _kind(text: str) -> tuple[str, str]:
    column, equals, kind = text.rpartition("=")
    if not equals or not column:
        raise ConfigError(f"--kind must be COLUMN=KIND with one of {', '.join(KINDS)}, such as zip=category, not {text!r}")
    return column, kind


def say_table(data: Dataset, task_given: bool) -> None:
    """Show the schema of a table, its task, and the parts of its rows."""
    schema, parts = data.schema, data.parts
    assert schema is not None
    assert parts is not None
    rows: list[tuple[str, ...]] = [
        (column.name, column.kind, str(len(column.features)), _described(column)) for column in schema.columns
    ]
    rows += [(name, "not used", "", reason) for name, reason in schema.ignored]
    console.table("", ("Column", "Kind", "Features", "Values"), rows, words=(0, 1, 3))
    console.say(f"Target {schema.target.name}: {_task(schema, task_given)}")
    drawn = "test rows given" if data.origin is not None and data.origin.test is not None else "test rows drawn"
    seed = 0 if data.origin is None else data.origin.seed
    kept = "" if schema.group is None else f"; rows with the same {schema.group} stay on one side"
    console.say(
        f"Rows: {len(parts.fit)} to train on, {len(parts.validation)} for validation, {len(parts.calibration)} for calibration, "
        f"{len(data.test)} to test ({drawn}, seed {seed}{kept})"
    )


def say_folder(data: Dataset) -> None:
    """Show what was found in a folder of images: classes, size and parts."""
    assert data.class_names is not None
    counts = torch.bincount(torch.cat([data.train.y, data.test.y]), minlength=len(data.class_names)).tolist()
    classes = [f"{name} ({count})" for name, count in zip(data.class_names, counts, strict=True)]
    console.say(f"{data.name}: {len(classes)} classes: {shortened(classes)}")
    validation = 0 if data.parts is None else len(data.parts.validation)
    parts = f"{data.n_train - validation} to train on" + (f", {validation} for validation (given)" if validation else "")
    colours = "grey" if data.input_shape[0] == 1 else "in colour"
    reading = "; they are read while training" if data.train.streamed else ""
    rows, columns = data.input_shape[1:]
    console.say(f"Images: {parts}, {len(data.test)} to test; {rows} x {columns} pixels, {colours}{reading}")


def _described(column: Column) -> str:
    """The range of a column, or its categories."""
    missing = "; some missing" if column.missing else ""
    match column.kind:
        case "number":
            text = f"{column.low:.6g} .. {column.high:.6g}, median {column.fill:.6g}"
        case "date":
            text = f"{column.date(column.low)} .. {column.date(column.high)}, as {', '.join(column.parts)}"
        case "category":
            text = f"{len(column.categories)}: {shortened(column.categories, _SHOWN_CATEGORIES)}"
            text += " (rare ones count as other)" if column.other else ""
        case _:
            text = "yes or no"
    return text + missing


def _task(schema: Schema, given: bool) -> str:
    target = schema.target
    how = "as asked for" if given else "inferred; another one with --task"
    if target.task == "regression":
        return f"regression ({how}), mean {target.mean:.6g}, standard deviation {target.std:.6g}"
    return f"classification ({how}), {len(target.classes)} classes: {shortened(target.classes)}"
