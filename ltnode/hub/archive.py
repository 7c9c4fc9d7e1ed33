"""The archive of a model: the files of its run folder in a zip file without compression, so that its bytes are reproducible."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

from ltnode import files
from ltnode.errors import CheckpointError, DataError
from ltnode.hub.index import MAX_ARCHIVE_BYTES

NEEDED = ("config.json", "model.safetensors")
FILES = (*NEEDED, "README.md", "calibration.json", "estimator.json", "metrics.jsonl", "operating_point.json", "results.json")
"""The files of a run folder that an archive may hold, and no others."""
_UNREADABLE = (zipfile.BadZipFile, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError, IndexError)
"""What zipfile raises for damaged files; NotImplementedError is a RuntimeError."""
_TIME = (1980, 1, 1, 0, 0, 0)


def folder_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a run folder that belong into an archive, in the order of their names.

    Raises:
        CheckpointError: A file that is needed is missing, or one is too large.
    """
    for name in NEEDED:
        if not (folder / name).exists():
            raise CheckpointError(f"{folder / name} is missing: {folder} is not the folder of a finished run")
    return {name: files.read_bytes(folder / name, MAX_ARCHIVE_BYTES) for name in sorted(FILES) if (folder / name).exists()}


def pack(folder: Path) -> bytes:
    """Pack a run folder: the same bytes for the same files.

    Raises:
        CheckpointError: As `folder_files`.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in folder_files(folder).items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, data)
    return content.getvalue()


def unpack(content: bytes, source: str) -> dict[str, bytes]:
    """Return the files in an archive, which anybody may have written.

    Nothing is compressed, so that an archive unpacks to no more than its own size. There are no folders, links or other names
    than those of a run folder.

    Raises:
        DataError: It is not such an archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            _check(entries, names, len(content))
            return {entry.filename: archive.read(entry) for entry in entries}
    except _UNREADABLE as error:
        raise DataError(f"{source} is not the archive of a model: {error}") from error


def _check(entries: list[zipfile.ZipInfo], names: list[str], size: int) -> None:
    if foreign := set(names) - set(FILES):
        raise ValueError(f"it holds {sorted(foreign)[0][:80]!r}, which is no file of a run folder")
    if len(names) != len(set(names)):
        raise ValueError("it holds a file twice")
    if missing := set(NEEDED) - set(names):
        raise ValueError(f"{sorted(missing)[0]} is missing")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise ValueError("its files must be neither compressed nor encrypted")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its files are larger than the archive")
