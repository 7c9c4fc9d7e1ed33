"""Run folders in shared storage: a path or any URL that fsspec knows, such as ``s3://bucket/sweep``.

Object stores have no rename, so nothing here relies on it. Files are uploaded under the SHA-256 of their content, and then a
manifest that lists them; a manifest carries the digest of its content in its name. Whoever reads takes the newest manifest whose
files are all there and intact, so an upload that was cut off is never seen.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path, PurePosixPath
from typing import Any

from ltnode import files
from ltnode.errors import CheckpointError, ConfigError, missing_extra

_LOG = logging.getLogger("ltnode")
_MANIFEST = re.compile(r"manifest-(\d{8})-([0-9a-f]{64})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEPT = 2
"""Manifests that stay: the newest, and the one before in case a file of the newest is lost."""


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it.

    Raises:
        MissingExtraError: fsspec, or the package for this kind of URL, is not installed.
        ConfigError: This is not a path or a URL that fsspec knows.
    """
    try:
        import fsspec
    except ImportError as error:
        raise missing_extra("fsspec", "cluster", "shared storage") from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ConfigError(f"the storage {url} needs another package: {error}") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"the storage must be a path or a URL that fsspec knows, not {url!r}: {error}") from error
    return system, path.rstrip("/")


class RunStorage:
    """One run folder in shared storage.

    Args:
        url: Path or URL of the folder in the storage.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._root = file_system(url)

    def save(self, folder: Path) -> None:
        """Upload what has changed in a run folder, and then the manifest.

        Raises:
            CheckpointError: The storage cannot be written.
        """
        try:
            self._save(folder)
        except OSError as error:
            raise CheckpointError(
                f"could not write to the storage {self.url}: {error}; the earlier checkpoint is intact"
            ) from error

    def restore(self, folder: Path) -> bool:
        """Download the newest intact run folder into an empty folder; False if the storage has none.

        Raises:
            CheckpointError: There are manifests, but the files of none are intact.
        """
        manifests = self._manifests()
        for name in reversed(manifests):
            try:
                content = {path: self._object(entry) for path, entry in self._read(name)["files"].items()}
            except (OSError, ValueError, KeyError, TypeError) as error:
                _LOG.warning("%s: %s cannot be used, trying the one before: %s", self.url, name, error)
                continue
            for path, body in content.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(body)
            return True
        if manifests:
            raise CheckpointError(f"no upload in {self.url} is intact; restore it from a backup, or delete it to start over")
        return False

    def publish(self, name: str, content: bytes) -> None:
        """Write a small file that anyone may read while the run goes on, such as its log."""
        self._system.makedirs(self._root, exist_ok=True)
        self._system.pipe_file(f"{self._root}/{name}", content)

    def published(self, name: str) -> bytes:
        """What `publish` has written; empty if nothing has."""
        try:
            return self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return b""

    def _save(self, folder: Path) -> None:
        self._system.makedirs(f"{self._root}/objects", exist_ok=True)
        earlier = self._manifests()
        stored = self._sizes("objects")
        listed = {}
        for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            relative = path.relative_to(folder)
            if any(part.startswith(files.TEMPORARY) for part in relative.parts):
                continue
            body = path.read_bytes()
            digest = hashlib.sha256(body).hexdigest()
            listed[relative.as_posix()] = {"sha256": digest, "bytes": len(body)}
            if stored.get(digest) != len(body):  # whoever was killed while it wrote has left a part
                self._system.pipe_file(f"{self._root}/objects/{digest}", body)
        number = int(_MANIFEST.fullmatch(earlier[-1])[1]) + 1 if earlier else 0  # type: ignore[index]
        manifest = json.dumps({"format": 1, "files": listed}, sort_keys=True).encode()
        name = f"manifest-{number:08d}-{hashlib.sha256(manifest).hexdigest()}.json"
        self._system.pipe_file(f"{self._root}/{name}", manifest)
        self._remove_unused([*earlier, name], set(stored))

    def _remove_unused(self, manifests: list[str], stored: set[str]) -> None:
        """Delete old manifests, then the files that none of the others lists."""
        for name in manifests[:-_KEPT]:
            self._system.rm_file(f"{self._root}/{name}")
        needed = set()
        for name in manifests[-_KEPT:]:
            try:
                needed |= {entry["sha256"] for entry in self._read(name)["files"].values()}
            except (OSError, ValueError):
                _LOG.warning("%s: %s is damaged and is ignored", self.url, name)
        for digest in stored - needed:
            self._system.rm_file(f"{self._root}/objects/{digest}")

    def _manifests(self) -> list[str]:
        return sorted(name for name in self._sizes("") if _MANIFEST.fullmatch(name))

    def _sizes(self, folder: str) -> dict[str, int | None]:
        """Names and sizes of the files in a folder of the storage."""
        self._system.invalidate_cache()
        try:
            entries = self._system.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {PurePosixPath(entry["name"]).name: entry.get("size") for entry in entries}

    def _read(self, name: str) -> dict[str, Any]:
        found = _MANIFEST.fullmatch(name)
        content = self._system.cat_file(f"{self._root}/{name}")
        if found is None or hashlib.sha256(content).hexdigest() != found[2]:
            raise ValueError("it is damaged")
        manifest: dict[str, Any] = files.parse_json(content)
        entries = manifest["files"] if isinstance(manifest, dict) else None
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError("it does not list files")
        for path, entry in entries.items():
            if not isinstance(entry.get("sha256"), str) or not _SHA256.fullmatch(entry["sha256"]):
                raise ValueError(f"{path[:200]!r} has no checksum")
            parts = PurePosixPath(path).parts
            if not parts or PurePosixPath(path).is_absolute() or ".." in parts or "\\" in path:
                raise ValueError(f"it lists a file outside of the run folder: {path[:200]!r}")
        return manifest

    def _object(self, entry: dict[str, Any]) -> bytes:
        content: bytes = self._system.cat_file(f"{self._root}/objects/{entry['sha256']}")
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise ValueError(f"the content of {entry['sha256'][:12]}... is damaged")
        return content
