"""Models in repositories of the Hugging Face Hub: config.json, model.safetensors, and a model card. Needs the extra ``hub``."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode import files
from ltnode.errors import DataError, InputError, missing_extra
from ltnode.hub.archive import FILES, NEEDED, folder_files
from ltnode.hub.cache import cached, install, recall, remember
from ltnode.hub.card import card
from ltnode.hub.index import MAX_ARCHIVE_BYTES
from ltnode.models import Model
from ltnode.saving import save
from ltnode.trained import TrainedModel
from ltnode.training import Run
from ltnode.training.run_config import CONFIG

if TYPE_CHECKING:
    from ltnode.estimators import LTNodeClassifier, LTNodeRegressor

_LOG = logging.getLogger("ltnode")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_ADDRESS = re.compile(rf"hf:/{{1,2}}({REPOSITORY.pattern})(?:@(?!.*\.\.)([\w.][\w./-]{{0,199}}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def repository_of(address: str) -> tuple[str, str] | None:
    """Repository and revision of an address ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``; None for anything else."""
    found = _ADDRESS.fullmatch(address)
    return None if found is None else (found[1], found[2] or "main")


def push_to_hub(
    run: Run | TrainedModel | Model | LTNodeClassifier | LTNodeRegressor | str | Path,
    repository: str,
    *,
    private: bool = False,
    license: str | None = None,
    message: str = "Upload with ltnode",
) -> str:
    """Publish a model, a run or a fitted estimator in a repository of the Hugging Face Hub, which is created if needed.

    The repository gets the files of the run folder and a model card: the README.md of the folder, or one that is written from
    the configuration and the results of `ltnode evaluate`. `ltnode.from_pretrained(repository)` opens the model again.
    You log in by ``hf auth login`` or the environment variable HF_TOKEN.

    Args:
        run: The run, model or estimator, or its folder.
        repository: OWNER/NAME.
        private: Whether a new repository is private.
        license: Identifier of the licence for the card, such as "mit".
        message: Message of the commit.

    Returns:
        The address of the commit.

    Raises:
        InputError: The name of the repository is wrong.
        CheckpointError: The folder is no finished run.
        DataError: The repository cannot be written.
    """
    client = _client()
    if not REPOSITORY.fullmatch(repository):
        raise InputError(f"repository must be OWNER/NAME, not {repository!r}")
    content = _content(run, repository, license)
    with _remote(f"could not publish in {repository}"):
        api = client.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        additions = [client.CommitOperationAdd(name, data) for name, data in content.items()]
        return str(api.create_commit(repository, additions, commit_message=message).commit_url)


def fetch_repository(repository: str, revision: str) -> Path:
    """The folder of the model in a repository, which is downloaded if this revision is not cached.

    Without a network, the revision that was used last is opened, with a warning.

    Raises:
        DataError: The repository cannot be read, or holds no model of sensible size.
    """
    client, name = _client(), repository.split("/")[1]
    kept = f"repositories/{repository.replace('/', '--')}@{revision.replace('/', '--')}"
    if _COMMIT.fullmatch(revision) and (cached(revision, name) / CONFIG).is_file():
        return cached(revision, name)
    api = client.HfApi()
    try:
        with _remote(f"could not read {repository}"):
            info = api.model_info(repository, revision=revision, files_metadata=True)
    except DataError as error:
        commit = recall(kept, 40).decode("ascii", "replace")
        folder = cached(commit, name)
        if not (_COMMIT.fullmatch(commit) and (folder / CONFIG).is_file()):
            raise
        _LOG.warning("%s. The revision %s, which was used last, is opened", error, commit[:8])
        return folder
    folder = cached(_commit(info.sha, repository), name)
    if not (folder / CONFIG).is_file():
        install(folder, _download(api, repository, info))
    remember(kept, info.sha.encode())
    return folder


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise missing_extra("huggingface_hub", "hub", "a repository of the Hugging Face Hub") from error
    return huggingface_hub


@contextmanager
def _remote(failure: str) -> Iterator[None]:
    """Turn the errors of the client, which come from several libraries and have many lines, into one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{failure}: {reason}") from error


def _commit(text: object, repository: str) -> str:
    """The commit of an answer, which becomes the name of a folder."""
    if not isinstance(text, str) or not _COMMIT.fullmatch(text):
        raise DataError(f"{repository} has no commit")
    return text


def _download(api: Any, repository: str, info: Any) -> dict[str, bytes]:
    """Download the files of a model, and no others, after a look at their sizes."""
    sizes = {file.rfilename: file.size for file in info.siblings or () if file.rfilename in FILES}
    if missing := set(NEEDED) - set(sizes):
        raise DataError(f"{repository} is no model of ltnode: it has no {sorted(missing)[0]}")
    if not all(isinstance(size, int) for size in sizes.values()) or sum(sizes.values()) > MAX_ARCHIVE_BYTES:
        raise DataError(f"{repository} must have at most {MAX_ARCHIVE_BYTES:,} bytes of files that belong to a model")
    with _remote(f"could not download {repository}"), tempfile.TemporaryDirectory(prefix="ltnode-") as scratch:
        return {
            name: files.read_bytes(
                Path(api.hf_hub_download(repository, name, revision=info.sha, local_dir=scratch)), MAX_ARCHIVE_BYTES
            )
            for name in sizes
        }


def _content(run: Any, repository: str, license: str | None) -> dict[str, bytes]:
    """The files of a repository; what is in memory is saved first."""
    if isinstance(run, Run | TrainedModel) and run.path is not None:
        run = run.path
    if isinstance(run, str | Path):
        return _with_card(Path(run), repository, license)
    with tempfile.TemporaryDirectory(prefix="ltnode-") as scratch:
        saved = save(run.model if isinstance(run, Run | TrainedModel) else run, Path(scratch) / repository.split("/")[1])
        return _with_card(saved, repository, license)


def _with_card(folder: Path, repository: str, license: str | None) -> dict[str, bytes]:
    content = folder_files(folder)
    return {**content, "README.md": card(folder, repository, license).encode()}
