"""Schemas as JSON: what `Schema.to_json` writes, and strict checks of what `Schema.from_json` reads."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ltnode.checks import is_finite_number
from ltnode.errors import InputError, unknown_name
from ltnode.tables.cells import DATE_FORMATS, FIRST_DAY, LAST_DAY
from ltnode.tables.column import KINDS, MOST_CATEGORIES, PARTS, Column
from ltnode.tables.target import MOST_CLASSES, TASKS, Target

if TYPE_CHECKING:
    from ltnode.tables.schema import Schema

FORMAT = 1
MOST_COLUMNS = 10_000
_LONGEST_TEXT = 1000
_LARGEST = 1e300
Described = TypeVar("Described", Column, Target)


def to_json(schema: Schema) -> dict[str, Any]:
    """All values of a schema as JSON types."""
    return {
        "format": FORMAT,
        "columns": [_plain(column) for column in schema.columns],
        "targets": [_plain(target) for target in schema.targets],
        "group": schema.group,
        "ignored": [{"name": name, "reason": reason} for name, reason in schema.ignored],
    }


def from_json(cls: type[Schema], content: Any) -> Schema:
    """Make a schema of JSON that may be hostile: names, kinds, sizes and numbers are checked."""
    keys = {"format", "columns", "targets", "group", "ignored"}
    if not isinstance(content, dict) or set(content) != keys:
        raise InputError(f"a schema must have the keys {', '.join(sorted(keys))}")
    if content["format"] != FORMAT or isinstance(content["format"], bool):
        raise InputError(f"format must be {FORMAT}, not {str(content['format'])[:40]!r}")
    columns = tuple(_described(Column, entry) for entry in _listed("columns", content["columns"], MOST_COLUMNS))
    targets = tuple(_described(Target, entry) for entry in _listed("targets", content["targets"], MOST_COLUMNS))
    for column in columns:
        _check_column(column)
    for target in targets:
        _check_target(target)
    group = None if content["group"] is None else _text("group", content["group"])
    ignored = []
    for entry in _listed("ignored", content["ignored"], MOST_COLUMNS):
        if not isinstance(entry, dict) or set(entry) != {"name", "reason"}:
            raise InputError("an ignored column must have a name and a reason")
        ignored.append((_text("name", entry["name"]), _text("reason", entry["reason"])))
    return cls(columns, targets, group, tuple(ignored))


def _plain(value: Column | Target) -> dict[str, Any]:
    return {key: list(item) if isinstance(item, tuple) else item for key, item in asdict(value).items()}


def _described(cls: type[Described], content: Any) -> Described:
    """A column or a target of a table whose keys and types are those of its attributes."""
    known = {entry.name: entry.type for entry in fields(cls)}
    if not isinstance(content, dict) or set(content) != set(known):
        raise InputError(f"a {cls.__name__.lower()} must have the keys {', '.join(known)}")
    values: dict[str, Any] = {}
    for key, kind in known.items():
        match str(kind):
            case "bool":
                if not isinstance(content[key], bool):
                    raise InputError(f"{key} must be true or false, not {str(content[key])[:40]!r}")
                values[key] = content[key]
            case "float":
                values[key] = _number(key, content[key])
            case "tuple[str, ...]":
                values[key] = tuple(_text(key, entry) for entry in _listed(key, content[key], MOST_CLASSES))
            case _:
                values[key] = _text(key, content[key])
    return cls(**values)


def _check_column(column: Column) -> None:
    if column.kind not in KINDS:
        raise InputError(unknown_name("kind", column.kind[:40], KINDS))
    if column.form not in DATE_FORMATS:
        raise InputError(unknown_name("format of dates", column.form[:40], DATE_FORMATS))
    if not set(column.parts) <= set(PARTS) or len(set(column.parts)) != len(column.parts):
        raise InputError(f"parts of a date must be different ones of {', '.join(PARTS)}")
    if len(set(column.categories)) != len(column.categories) or len(column.categories) > MOST_CATEGORIES:
        raise InputError(f"categories must differ and be at most {MOST_CATEGORIES}")
    if column.kind == "date" and not column.parts:
        raise InputError(f"the date {column.name[:40]!r} must have parts")
    if column.low > column.high:
        raise InputError(f"low of the column {column.name[:40]!r} must be at most its high, {column.high!r}, not {column.low!r}")
    if column.kind == "date" and not all(FIRST_DAY <= day < LAST_DAY + 1 for day in (column.low, column.fill, column.high)):
        raise InputError(f"the dates of the column {column.name[:40]!r} must be in the years 1 to 9999")
    if column.kind == "category" and not column.features:
        raise InputError(f"the column {column.name[:40]!r} must have categories")


def _check_target(target: Target) -> None:
    if target.task not in TASKS:
        raise InputError(unknown_name("task", target.task[:40], TASKS))
    if target.std <= 0:
        raise InputError(f"std of a target must be positive, not {target.std!r}")
    if len(set(target.classes)) != len(target.classes) or (target.task == "classification") != (len(target.classes) >= 2):
        raise InputError("a classification must have at least 2 different classes, and a regression none")


def _listed(name: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise InputError(f"{name} must be a list of at most {most:,} entries")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise InputError(f"{name} must be text of at most {_LONGEST_TEXT:,} characters, not {str(value)[:40]!r}")
    return value


def _number(name: str, value: Any) -> float:
    if not is_finite_number(value) or abs(value) > _LARGEST:
        raise InputError(f"{name} must be a finite number, not {str(value)[:40]!r}")
    return float(value)
