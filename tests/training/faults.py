"""Faults of the disk: one operation of the process fails, or every write is short."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

KINDS = ("fsync", "replace", "rename", "full disk", "interrupted", "short write")


class Faults:
    """Lets one operation on the disk fail: the n-th write, fsync or rename of the process, counted from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, position: int) -> None:
        self.kind, self.left, self.happened = kind, position, False
        originals = {"fsync": os.fsync, "replace": Path.replace, "rename": Path.rename, "open": Path.open}
        faults = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                if kind == "short write":
                    return super().write(bytes(data)[: max(1, len(data) // 2)])
                if kind == "full disk" and faults.due():
                    super().write(bytes(data)[: len(data) // 2])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if kind == "interrupted" and faults.due():
                    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
                return super().write(data)

        def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
            return (
                io.BufferedWriter(File(str(path), mode))
                if mode in ("wb", "ab")
                else originals["open"](path, mode, *rest, **options)
            )

        def failing(name: str) -> Any:
            def operation(*arguments: Any) -> Any:
                if kind == name and faults.due():
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return originals[name](*arguments)

            return operation

        monkeypatch.setattr(os, "fsync", failing("fsync"))
        monkeypatch.setattr(Path, "replace", failing("replace"))
        monkeypatch.setattr(Path, "rename", failing("rename"))
        monkeypatch.setattr(Path, "open", opened)

    def due(self) -> bool:
        self.left -= 1
        self.happened |= self.left < 0
        return self.left == -1
