"""Where the data of a user came from, and how their parts were drawn: enough to load the same data again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ltnode.errors import DataError, InputError

_LONGEST = 4096
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Origin:
    """A table or a folder of images, and the arguments with which it was read.

    Attributes:
        kind: "table" or "folder".
        path: Path as it was given.
        sha256: Checksum of the file; empty for a folder, whose arrays have checksums of their own.
        test: Path of a separate table of test rows; None if they were drawn.
        test_sha256: Checksum of that file.
        test_fraction: Share of the rows that were drawn for testing.
        validation_fraction: Share of the others that were drawn for validation.
        calibration_fraction: Share of the others that were drawn for calibration.
        seed: Seed of the draw.
        size: Height and width to which images were scaled; None keeps their size.
    """

    kind: Literal["table", "folder"]
    path: str
    sha256: str = ""
    test: str | None = None
    test_sha256: str = ""
    test_fraction: float = 0.2
    validation_fraction: float = 0.0
    calibration_fraction: float = 0.0
    seed: int = 0
    size: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        return {**asdict(self), "size": None if self.size is None else list(self.size)}

    @classmethod
    def from_json(cls, content: Any) -> Origin:
        """Make an origin of the content of a file, which may be anything.

        Raises:
            InputError: It is not an origin.
        """
        known = {entry.name: str(entry.type) for entry in fields(cls)}
        if not isinstance(content, Mapping) or set(content) != set(known):
            raise InputError(f"the origin of data must have the keys {', '.join(known)}")
        values = dict(content)
        if values["kind"] not in get_args(Literal["table", "folder"]):
            raise InputError(f"kind of an origin must be table or folder, not {str(values['kind'])[:40]!r}")
        for key, kind in known.items():
            _check(key, kind, values[key])
        size = values["size"]
        if size is not None:
            if not isinstance(size, list) or len(size) != 2 or not all(isinstance(n, int) and 0 < n < 100_000 for n in size):
                raise InputError("size of an origin must be height and width")
            values["size"] = tuple(size)
        return cls(**values)

    def find(self, folder: Path | None) -> Origin:
        """The origin with paths that exist and hold the recorded content.

        A relative path is looked for in the working folder, and in the folders above that of the run.

        Args:
            folder: The run folder; None looks in the working folder only.

        Raises:
            DataError: A file is missing, or holds something else.
        """
        return self.found_at(_found(self.path, self.sha256, folder, is_folder=self.kind == "folder"), folder)

    def found_at(self, path: Path, folder: Path | None) -> Origin:
        """The origin with its content at ``path``, and the test rows where `find` looks for them.

        Raises:
            DataError: The table of the test rows is missing, or holds something else.
        """
        test = None if self.test is None else str(_found(self.test, self.test_sha256, folder, is_folder=False))
        return replace(self, path=str(path), test=test)


def _check(key: str, kind: str, value: Any) -> None:
    """Require text or a number, as the annotation of an attribute says."""
    if (
        kind.startswith("str")
        and not (isinstance(value, str) and len(value) <= _LONGEST)
        and (value is not None or kind == "str")
    ):
        raise InputError(f"{key} of an origin must be text of at most {_LONGEST:,} characters")
    if kind in ("float", "int"):
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric or not 0 <= value < 2**63 or (kind == "int" and not isinstance(value, int)):
            raise InputError(f"{key} of an origin must be a number >= 0, not {str(value)[:40]!r}")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _found(recorded: str, sha256: str, folder: Path | None, *, is_folder: bool) -> Path:
    path = Path(recorded).expanduser()
    places = [path, *([] if folder is None else [parent / path for parent in folder.resolve().parents]), Path(path.name)]
    changed: Path | None = None
    for place in places:
        if is_folder and place.is_dir():
            return place
        if not is_folder and place.is_file():
            if file_sha256(place) == sha256:
                return place
            changed = changed or place
    if changed is not None:
        raise DataError(
            f"{changed} has changed since the model was trained on it (SHA-256 {sha256[:12]}... is recorded): restore it, or "
            "name another table with --data"
        )
    raise DataError(f"the model was trained on {recorded}, which is not here: put it back, or name its place with --data")
