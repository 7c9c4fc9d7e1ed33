"""Result files of the small experiments: one JSON file per run, written completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.errors import DataError
from ltnode.files import write_json


def write_result(out: Path, stem: str, result: Mapping[str, Any]) -> Path:
    """Write one result to ``<out>/<stem>.json``; returns the file."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem}.json"
    write_json(path, dict(result))
    return path


def read_results(out: Path, stems: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Read results by name; returns those that exist, and the names of those that do not.

    Raises:
        DataError: A file is damaged.
    """
    results: list[dict[str, Any]] = []
    missing: list[str] = []
    for stem in stems:
        path = out / f"{stem}.json"
        try:
            results.append(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            missing.append(stem)
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); delete it and run the command again") from error
    return results, missing


def shortened(length: int, full: int) -> str:
    """Suffix of the files of a shortened run, which must never replace those of a full one."""
    return "" if length == full else f"-{length}it"
