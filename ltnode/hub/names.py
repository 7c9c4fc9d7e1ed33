"""From the name of a model to its run folder."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.errors import CheckpointError, DataError, InputError
from ltnode.hub.archive import pack, unpack
from ltnode.hub.cache import cached, install
from ltnode.hub.huggingface import REPOSITORY, fetch_repository, repository_of
from ltnode.hub.index import INDEX, NAME, Entry, Index, describe, index_bytes
from ltnode.hub.places import Place, configured_place
from ltnode.saving import load
from ltnode.trained import TrainedModel
from ltnode.training.run_config import CONFIG, kind_of_folder


def from_pretrained(name: str | Path, device: str = "cpu") -> Any:
    """Open a trained model by its name; it is fetched at the first use, and from then on no network is needed.

    Models come from the folder or address in the environment variable LTNODE_MODELS; by default from the release that the
    installed package belongs to. They are verified by checksums and cached in LTNODE_CACHE, by default in the user's cache.

    Args:
        name: Name of a model, as `ltnode models` lists them; a repository OWNER/NAME of the Hugging Face Hub (extra ``hub``),
            also written as "hf://OWNER/NAME@REVISION"; or a run folder.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Returns:
        A `TrainedModel`; for the folder or repository of a saved estimator, the estimator.

    Raises:
        InputError: There is no model of this name.
        DataError: It cannot be fetched, or what arrives is not what was published.
        CheckpointError: The run folder is damaged or hostile.
    """
    is_repository = REPOSITORY.fullmatch(str(name)) and not Path(name).exists()
    folder = locate(f"hf://{name}" if is_repository else name)
    return load(folder, device=device) if kind_of_folder(folder) == "estimator" else TrainedModel.open(folder, device)


def locate(run: str | Path) -> Path:
    """Find a run folder: a path that exists is returned as it is; a name, or "hf://OWNER/NAME", becomes the folder of the model.

    Raises:
        InputError: It is neither.
        DataError: The model cannot be fetched.
    """
    if (address := repository_of(run.as_posix() if isinstance(run, Path) else run)) is not None:
        return fetch_repository(*address)
    if Path(run).exists() or not NAME.fullmatch(str(run).lower()):
        return Path(run)
    try:
        return fetch_model(str(run))
    except (InputError, DataError) as error:
        raise type(error)(f"{run} is not a folder, and there is no model to open by this name: {error}") from error


def fetch_model(name: str) -> Path:
    """The run folder of a model by name, which is fetched if it is not cached.

    Raises:
        InputError: There is no such model.
        DataError: It cannot be fetched, or what arrives is not what was published.
    """
    place = configured_place()
    if NAME.fullmatch(name) and (folder := place.folder(name)) is not None:
        return folder
    models = place.index(name)
    if name not in models:
        near = difflib.get_close_matches(name.lower(), models, n=1, cutoff=0.5)
        suggestion = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(f"{place.address} has no model {name!r}. {suggestion}All names: ltnode models")
    entry = models[name]
    folder = cached(entry.sha256, name)
    if not (folder / CONFIG).is_file():
        _fetch(place, name, entry, folder)
    return folder


def list_models() -> tuple[Place, dict[str, tuple[Entry, Path | None]]]:
    """The configured place, and its models by name, each with its folder if no network is needed to use it."""
    place = configured_place()
    found = {}
    for name, entry in sorted(place.index().items()):
        folder = place.folder(name) or cached(entry.sha256, name)
        found[name] = (entry, folder if (folder / CONFIG).is_file() else None)
    return place, found


def pack_models(zoo: Path, out: Path | None = None) -> Index:
    """Pack every run folder in a folder, so that the archives can be put in a place.

    Args:
        zoo: Folder of run folders.
        out: Folder for the archives and their index; None writes nothing.

    Returns:
        The index.

    Raises:
        CheckpointError: A run folder is not finished, or a file cannot be written.
        InputError: There are no run folders.
    """
    folders = sorted(file.parent for file in zoo.glob(f"*/{CONFIG}"))
    if not folders:
        raise InputError(f"{zoo} must be a folder of run folders, but no folder in it has a {CONFIG}")
    models = {}
    for folder in folders:
        archive = pack(folder)
        models[folder.name] = describe(folder, archive)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            files.write_bytes(out / _archive_name(folder.name), archive)
    if out is not None:
        files.write_bytes(out / INDEX, index_bytes(models))
    return models


def _archive_name(name: str) -> str:
    return f"{name}.zip"


def _fetch(place: Place, name: str, entry: Entry, folder: Path) -> None:
    """Fetch and verify an archive, and unpack it into the cache, where it appears as a whole or not at all."""
    file = _archive_name(name)
    content = place.read(file, entry.size)
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise DataError(
            f"{file} of {place.address} is not the published file: its {len(content):,} bytes do not have the SHA-256 "
            f"{entry.sha256}. Fetch it again, and if that does not help, tell those who publish it"
        )
    install(folder, unpack(content, f"{file} of {place.address}"))


def copy_model(name: str, out: Path) -> Path:
    """Copy the run folder of a model by name to a folder of one's own, which may be changed.

    Raises:
        CheckpointError: The folder exists, or cannot be written.
        InputError: There is no such model.
        DataError: It cannot be fetched.
    """
    if out.exists():
        raise CheckpointError(f"{out} exists already; choose another folder")
    source = fetch_model(name)
    try:
        shutil.copytree(source, out)
    except OSError as error:
        raise CheckpointError(f"could not copy {source} to {out}: {error}") from error
    return out
