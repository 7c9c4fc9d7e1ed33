"""Where models come from: a folder on this machine, or a web address, whose files are downloaded."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.metadata
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from ltnode import files
from ltnode._version import __version__
from ltnode.download import Download, is_web_address, reporter
from ltnode.errors import CheckpointError, DataError, InputError
from ltnode.hub.cache import recall, remember
from ltnode.hub.index import INDEX, MAX_INDEX_BYTES, Index, describe, read_index
from ltnode.training.run_config import CONFIG

_LOG = logging.getLogger("ltnode")
_BUILT_IN = Path(__file__).with_name("models.json")
"""Index of the models that are published with this version of ltnode; its checksums come with the package."""
_CLONE = Path(__file__).parents[2] / "zoo"


@dataclass(frozen=True)
class Folder:
    """A folder of run folders, or of archives with their index."""

    path: Path

    @property
    def address(self) -> str:
        """The path."""
        return str(self.path)

    def index(self, wanted: str | None = None) -> Index:
        """The models: those of the index, or the run folders."""
        if (self.path / INDEX).exists():
            return read_index(self.read(INDEX, MAX_INDEX_BYTES), str(self.path / INDEX))
        found = {}
        for file in sorted(self.path.glob(f"*/{CONFIG}")):
            with contextlib.suppress(CheckpointError):  # an unfinished run
                found[file.parent.name] = describe(file.parent)
        return found

    def folder(self, name: str) -> Path | None:
        """The run folder of a model if it can be used where it is."""
        path = self.path / name
        return path if (path / CONFIG).is_file() else None

    def read(self, file: str, most: int) -> bytes:
        """The content of a file of at most ``most`` bytes."""
        try:
            return files.read_bytes(self.path / file, most)
        except (FileNotFoundError, CheckpointError) as error:
            raise DataError(f"cannot read {self.path / file}: {error}") from error


@dataclass(frozen=True)
class Web:
    """A web address below which there are archives and their index, such as that of a release or of a mirror."""

    address: str

    def index(self, wanted: str | None = None) -> Index:
        """The models; of an earlier download if that has the one that is ``wanted``, or if there is no network."""
        kept = f"indexes/{hashlib.sha256(self.address.encode()).hexdigest()[:16]}.json"
        earlier: Index = {}
        with contextlib.suppress(DataError):
            earlier = read_index(recall(kept, MAX_INDEX_BYTES), kept)
        if wanted is not None and wanted in earlier:
            return earlier
        try:
            content = self.read(INDEX, MAX_INDEX_BYTES)
        except DataError as error:
            if not earlier:
                raise
            _LOG.warning("%s. The list of an earlier download is used", error)
            return earlier
        found = read_index(content, urljoin(self.address, INDEX))
        remember(kept, content)
        return found

    def folder(self, name: str) -> Path | None:
        """Nothing can be used where it is."""
        return None

    def read(self, file: str, most: int) -> bytes:
        """The content of a file of at most ``most`` bytes."""
        url = urljoin(self.address, file)
        try:
            with tempfile.TemporaryDirectory(prefix="ltnode-") as folder, reporter(True) as report:
                target = Path(folder) / file
                Download(target.with_name(f"{file}.part"), report, most=most)(url, target)
                return files.read_bytes(target, most)
        except (OSError, http.client.HTTPException) as error:
            raise DataError(
                f"could not download {url}: {error}. Models come from the folder or address in LTNODE_MODELS if that is set"
            ) from error


@dataclass(frozen=True)
class Release(Web):
    """The release of this version, whose checksums come with the package: nobody can exchange its models afterwards."""

    def index(self, wanted: str | None = None) -> Index:
        """The models, from the index in the package."""
        return read_index(_BUILT_IN.read_bytes(), str(_BUILT_IN))


Place = Folder | Web
"""Both have an ``address`` for people, the ``index`` of their models, and files to ``read``."""


def configured_place() -> Place:
    """The place in LTNODE_MODELS; else the zoo of the clone that this package is in, or the release that it belongs to.

    Raises:
        InputError: There is no place.
    """
    if chosen := os.environ.get("LTNODE_MODELS"):
        if is_web_address(chosen):
            return Web(chosen.rstrip("/") + "/")
        path = Path(chosen).expanduser()
        if not path.is_dir():
            raise InputError(f"LTNODE_MODELS must be a folder or start with http:// or https://, not {chosen!r}")
        return Folder(path)
    if (_CLONE.with_name("pyproject.toml")).is_file() and _CLONE.is_dir():
        return Folder(_CLONE)
    if address := _release_address():
        return Release(address)
    raise InputError(
        "this build of ltnode does not know where its trained models are published: set LTNODE_MODELS to a folder or an address "
        "that has them"
    )


def _release_address() -> str | None:
    """The address of the models of this version, from the repository that the metadata of the installed package names."""
    try:
        urls = importlib.metadata.metadata("ltnode").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    named = dict(line.split(", ", 1) for line in urls if ", " in line)
    return f"{named['Repository']}/releases/download/v{__version__}/" if "Repository" in named else None
