"""The end of a journal of Optuna: what a killed process or a full disk has left there unfinished is removed.

Optuna appends to a line that was cut off, and can then read no line of the journal again. And it writes a point in several
lines, so that a search that stopped between them would train with fewer values than it searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.errors import CheckpointError

MAX_BYTES = 4 << 30
_CREATE_TRIAL, _SET_PARAM = 4, 5
"""Codes of operations, `JournalOperation` in optuna.storages.journal."""


def trim_journal(path: Path, keys: int) -> None:
    """Cut a journal after its last whole operation.

    Args:
        path: The journal; it need not exist. No other process may use it.
        keys: Number of values of a point.

    Raises:
        CheckpointError: A line before the last one is damaged, or the journal cannot be written.
    """
    if not path.exists():
        return
    content = files.read_bytes(path, MAX_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.splitlines(keepends=True)
    operations = [_operation(path, number, line) for number, line in enumerate(lines, 1)]
    last = max((place for place, code in enumerate(operations) if code == _CREATE_TRIAL), default=None)
    if last is not None and operations[last:].count(_SET_PARAM) < keys:
        whole = b"".join(lines[:last])
    if whole != content:
        files.write_bytes(path, whole)


def _operation(path: Path, number: int, line: bytes) -> int:
    try:
        content: Any = files.parse_json(line)
        return int(content["op_code"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged at line {number} ({error}): restore it from a backup, or sweep in another folder"
        ) from error
