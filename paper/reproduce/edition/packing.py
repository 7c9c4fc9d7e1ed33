"""Results and unfinished runs of one session as a few small archives, and their merging into the records of a clone.

``results.zip`` holds result files; ``runs-1.zip`` and so on hold what the next session needs of runs whose results are not
complete: the newest checkpoint, or the trained weights. Merging an archive twice changes nothing more than merging it once.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ltnode.errors import DataError
from ltnode.evaluation.protocols import PROTOCOLS
from ltnode.files import TEMPORARY, write_bytes
from paper.reproduce.images.cells import Places
from paper.reproduce.images.results import PREFIX, ImageResult, read_result, write_result
from paper.reproduce.images.run_folders import is_finished

LARGEST_ARCHIVE = 15 << 20
"""Largest size of an archive in bytes; only a run folder that is larger makes a larger one."""
_LARGEST_FILE = 256 << 20
_RESULTS, _RUNS, _CHECKPOINTS = "results", "runs", "checkpoints"
_NAME = re.compile(r"(results/[\w.-]+\.json|runs(/[\w.-]+){2,4})")
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass
class Merged:
    """What merging did with results, by file name, and with runs, by folder name."""

    new: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Results that differ from those in the archive and were not replaced."""
    runs: list[str] = field(default_factory=list)


def pack_results(folder: Path, results: Iterable[Path]) -> None:
    """Write the result files that exist to ``results.zip``."""
    files = {f"{_RESULTS}/{path.name}": path.read_bytes() for path in results if path.exists()}
    if files:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / f"{_RESULTS}.zip", _archive(files))


def pack_runs(folder: Path, runs: Iterable[Path]) -> None:
    """Write run folders to ``runs-1.zip``, ``runs-2.zip`` and so on, in place of those that are there."""
    archives: list[dict[str, bytes]] = [{}]
    for run in runs:
        files = {f"{_RUNS}/{run.name}/{path.relative_to(run).as_posix()}": path.read_bytes() for path in _needed(run)}
        size = sum(map(len, files.values()))
        if archives[-1] and sum(map(len, archives[-1].values())) + size > LARGEST_ARCHIVE:
            archives.append({})
        archives[-1] |= files
    for path in folder.glob(f"{_RUNS}-*.zip"):
        path.unlink()
    for number, files in enumerate(archives, 1):
        if files:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / f"{_RUNS}-{number}.zip", _archive(files))


def merge(archive: Path, places: Places, *, overwrite: bool = False) -> Merged:
    """Merge an archive into the results and run folders of a clone.

    Args:
        archive: A file that `pack_results` or `pack_runs` wrote.
        places: Where results and run folders are.
        overwrite: Replace recorded results that differ; otherwise a complete record stays what it is.

    Raises:
        DataError: The archive is damaged or holds something else; nothing of it was merged.
    """
    files = _read(archive)
    merged = Merged()
    for name in sorted(name for name in files if name.startswith(f"{_RESULTS}/")):
        _merge_result(places.out / name.partition("/")[2], files[name], overwrite, merged)
    names = [name.split("/") for name in files if name.startswith(f"{_RUNS}/")]
    for run in sorted({parts[1] for parts in names}):
        inside = {"/".join(parts[2:]): files["/".join(parts)] for parts in names if parts[1] == run}
        if _is_further(inside, places.runs / run):
            for name in sorted(inside, key=lambda name: (name == "config.json", name)):  # a folder counts once it has this file
                (places.runs / run / name).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(places.runs / run / name, inside[name])
            merged.runs.append(run)
    return merged


def _merge_result(path: Path, content: bytes, overwrite: bool, merged: Merged) -> None:
    if not path.exists() or (overwrite and path.read_bytes() != content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
        merged.new.append(path.name)
    elif path.read_bytes() != content:
        completed = _completed(path, content) if path.name.startswith(PREFIX) else None
        if completed is None:
            merged.kept.append(path.name)
        elif completed.content != read_result(path).content:
            write_result(path, completed.content)
            merged.completed.append(path.name)


def _completed(path: Path, content: bytes) -> ImageResult | None:
    """The recorded result with the protocols that only the archive has; None if they belong to other weights."""
    recorded, other = read_result(path), ImageResult(json.loads(content))
    if recorded.content["weights_sha256"] != other.content["weights_sha256"]:
        return None
    both = {**other.protocols, **recorded.protocols}
    order = list(PROTOCOLS)
    protocols = dict(sorted(both.items(), key=lambda item: order.index(item[0].partition(":")[0])))
    learnt = recorded.content["learnt"] if "clean" in recorded.protocols else other.content["learnt"]
    return ImageResult({**recorded.content, "learnt": learnt, "protocols": protocols})


def _needed(run: Path) -> Sequence[Path]:
    """The files of a run folder that its continuation needs: of its checkpoints only the newest, and none after the end."""
    checkpoints = sorted((run / _CHECKPOINTS).glob("step-*"))
    kept = [] if is_finished(run) else checkpoints[-1:]
    files = [path for folder in (run, *kept) for path in sorted(folder.iterdir()) if path.is_file()]
    return [path for path in files if not path.name.startswith(TEMPORARY)]


def _is_further(files: dict[str, bytes], folder: Path) -> bool:
    """Whether a packed run is further than the one in a folder."""
    if not (folder / "config.json").exists():
        return True
    if is_finished(folder):
        return False
    here = max((path.name for path in (folder / _CHECKPOINTS).glob("step-*")), default="")
    packed = max((name.split("/")[1] for name in files if name.startswith(f"{_CHECKPOINTS}/")), default="")
    return "model.safetensors" in files or packed > here


def _archive(files: dict[str, bytes]) -> bytes:
    """The bytes of a zip archive, the same for the same files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _FIXED_DATE), files[name], zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _read(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            for entry in entries:
                if not _NAME.fullmatch(entry.filename) or ".." in entry.filename or entry.file_size > _LARGEST_FILE:
                    raise ValueError(f"it holds {entry.filename!r}, which is no result and no run")
            files = {entry.filename: archive.read(entry) for entry in entries}
            for name, content in files.items():
                if name.startswith(f"{_RESULTS}/"):
                    json.loads(content)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path} is no archive of a session, or is damaged ({error})") from error
    return files
