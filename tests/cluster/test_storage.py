"""Run folders in shared storage: uploads that were cut off or damaged are never taken for whole ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltnode.cluster.storage import RunStorage, file_system
from ltnode.errors import CheckpointError, ConfigError


def write(folder: Path, content: dict[str, bytes]) -> Path:
    for name, body in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=20, deadline=None)
@given(
    versions=st.lists(
        st.dictionaries(st.sampled_from(["a", "b/c", "b/d"]), st.binary(max_size=20), min_size=1), min_size=1, max_size=5
    )
)
def test_the_newest_upload_comes_back(tmp_path_factory: pytest.TempPathFactory, versions: list[dict[str, bytes]]) -> None:
    """Whatever was uploaded before: the restored folder equals the last one, and old objects do not pile up."""
    base = tmp_path_factory.mktemp("store")
    store = RunStorage(f"memory://{base.name}")
    for number, version in enumerate(versions):
        store.save(write(base / str(number), version))
    assert store.restore(base / "back")
    assert read(base / "back") == versions[-1]
    kept = {body for version in versions[-2:] for body in version.values()}
    assert len(store._sizes("objects")) <= len(kept)


def test_an_upload_that_was_cut_off_is_not_seen(tmp_path: Path) -> None:
    """Objects without a manifest, and a manifest of half its length, are what a killed process leaves."""
    store = RunStorage(str(tmp_path / "store"))
    store.save(write(tmp_path / "one", {"a": b"1"}))
    store.save(write(tmp_path / "two", {"a": b"2"}))
    newest = sorted((tmp_path / "store").glob("manifest-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:10])
    (tmp_path / "store" / "objects" / ("0" * 64)).touch()
    assert store.restore(tmp_path / "back")
    assert read(tmp_path / "back") == {"a": b"1"}


def test_a_part_of_an_object_is_written_again(tmp_path: Path) -> None:
    """A process that was killed while it wrote an object has left a part of it under the name of the whole."""
    store = RunStorage(str(tmp_path / "store"))
    (tmp_path / "store" / "objects").mkdir(parents=True)
    (tmp_path / "store" / "objects" / hashlib.sha256(b"config").hexdigest()).write_bytes(b"con")
    store.save(write(tmp_path / "one", {"config.json": b"config"}))
    assert store.restore(tmp_path / "back")
    assert read(tmp_path / "back") == {"config.json": b"config"}


def test_a_damaged_object_is_refused(tmp_path: Path) -> None:
    store = RunStorage(str(tmp_path / "store"))
    store.save(write(tmp_path / "one", {"a": b"1"}))
    next((tmp_path / "store" / "objects").iterdir()).write_bytes(b"other")
    with pytest.raises(CheckpointError, match="no upload in .* is intact"):
        store.restore(tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("path", ["../outside", "/etc/outside", "a/../../outside", "a\\..\\b"])
def test_a_manifest_cannot_write_outside_of_the_folder(tmp_path: Path, path: str) -> None:
    store = RunStorage(str(tmp_path / "store"))
    store.save(write(tmp_path / "one", {"a": b"1"}))
    digest = hashlib.sha256(b"1").hexdigest()
    manifest = json.dumps({"format": 1, "files": {path: {"sha256": digest, "bytes": 1}}}).encode()
    (tmp_path / "store" / f"manifest-00000009-{hashlib.sha256(manifest).hexdigest()}.json").write_bytes(manifest)
    assert store.restore(tmp_path / "back" / "run")
    assert read(tmp_path / "back") == {"run/a": b"1"}


def test_nothing_stored_and_unknown_places(tmp_path: Path) -> None:
    assert not RunStorage(str(tmp_path / "nothing")).restore(tmp_path / "back")
    with pytest.raises(ConfigError, match="a path or a URL that fsspec knows"):
        file_system("nosuchprotocol://bucket/x")
