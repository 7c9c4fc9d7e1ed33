"""Models by name: from folders, archives and a web server on this machine, with checksums, a cache, and no network afterwards."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from web_server import Server, web_server

import ltnode
from ltnode import download, hub
from ltnode.errors import CheckpointError, DataError, InputError
from ltnode.hub import places
from ltnode.hub.index import INDEX

NAME = "lt-node-points"
X = torch.tensor([[0.5, -1.0], [2.0, 0.0]])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two saved models of vectors."""
    folder = tmp_path_factory.mktemp("zoo")
    for name, seed in ((NAME, 0), ("node-points", 1)):
        model = ltnode.build(name.removesuffix("-points"), ltnode.InputSpec((2,), "classification", 3), seed=seed, width=4)
        ltnode.save(model, folder / name)
    return folder


@pytest.fixture
def packed(zoo: Path, tmp_path: Path) -> Path:
    hub.pack_models(zoo, tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LTNODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with the archives and their index, as LTNODE_MODELS names it."""
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    with web_server() as running:
        running.files = {path.name: path.read_bytes() for path in packed.iterdir()}
        monkeypatch.setenv("LTNODE_MODELS", running.url)
        yield running


def same_model(name: str | Path, folder: Path) -> bool:
    return torch.equal(ltnode.from_pretrained(name).model.predict(X).probs, ltnode.load(folder).predict(X).probs)


def cached_files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if (path.is_file() and path.suffix != ".json") or path.name == "config.json"]


def asked(server: Server) -> list[str]:
    return [path for path, _ in server.requests]


def test_a_model_is_fetched_once_and_needs_no_network_afterwards(
    zoo: Path, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as in the folder that was packed; later uses open no socket at all."""
    assert same_model(NAME, zoo / NAME)
    assert asked(server) == [INDEX, f"{NAME}.zip"]
    monkeypatch.setattr(socket, "socket", None)
    assert same_model(NAME, zoo / NAME)
    assert ltnode.from_pretrained(NAME).name == NAME
    assert asked(server) == [INDEX, f"{NAME}.zip"]


def test_a_path_that_exists_comes_before_a_name(
    zoo: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(zoo / "node-points", tmp_path / NAME)
    assert same_model(NAME, zoo / "node-points")
    assert hub.locate("runs/x") == Path("runs/x")
    assert not server.requests


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_a_place_can_be_a_folder(zoo: Path, packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Run folders are used where they are; archives are verified and unpacked into the cache."""
    place = zoo if kind == "folder" else packed
    monkeypatch.setenv("LTNODE_MODELS", str(place))
    assert same_model(NAME, zoo / NAME)
    assert hub.is_cached(hub.locate(NAME)) == (kind == "packed")
    assert list(hub.list_models()[1]) == [NAME, "node-points"]


def test_a_folder_lists_what_can_be_used(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished run beside them, and a folder whose name cannot be a model's, are left out."""
    for name in (NAME, "unfinished", "Upper-Case"):
        shutil.copytree(zoo / NAME, tmp_path / name)
    (tmp_path / "unfinished" / "model.safetensors").unlink()
    monkeypatch.setenv("LTNODE_MODELS", str(tmp_path))
    assert list(hub.list_models()[1]) == [NAME]


def test_an_unknown_name_is_answered_with_the_nearest(server: Server) -> None:
    with pytest.raises(
        InputError, match="lt-node-point is not a folder, .* has no model 'lt-node-point'. Did you mean 'lt-node-points'"
    ):
        ltnode.from_pretrained("lt-node-point")


def test_a_model_that_was_added_later_is_found(server: Server, zoo: Path) -> None:
    """An earlier index lacks the name, so the index is downloaded again."""
    index = server.files[INDEX]
    models = json.loads(index)
    del models["models"]["node-points"]
    server.files[INDEX] = json.dumps(models).encode()
    assert same_model(NAME, zoo / NAME)
    server.files[INDEX] = index
    assert same_model("node-points", zoo / "node-points")
    assert asked(server).count(INDEX) == 2


def test_a_new_version_replaces_the_old_one_when_the_list_is_renewed(
    server: Server, zoo: Path, packed: Path, tmp_path: Path
) -> None:
    """Until `ltnode models` is called, a name means what it meant; then the new checksum leads to a new download."""
    assert same_model(NAME, zoo / NAME)
    shutil.copytree(zoo / "node-points", tmp_path / "newer" / NAME)
    hub.pack_models(tmp_path / "newer", packed)
    server.files = {path.name: path.read_bytes() for path in packed.iterdir()}
    assert same_model(NAME, zoo / NAME)
    assert hub.list_models()[1][NAME][1] is None
    assert same_model(NAME, zoo / "node-points")


def test_the_list_works_without_the_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The list of an earlier download is used, with a warning that says why."""
    hub.list_models()
    server.files.clear()
    assert list(hub.list_models()[1]) == [NAME, "node-points"]
    assert "The list of an earlier download is used" in caplog.text


def test_a_connection_that_breaks_is_continued(server: Server, zoo: Path) -> None:
    server.breaks = {f"{NAME}.zip": [1000, 300]}
    assert same_model(NAME, zoo / NAME)
    assert [part for path, part in server.requests if path != INDEX] == [None, "bytes=1000-", "bytes=1300-"]


def test_processes_that_fetch_at_once_do_not_disturb_each_other(server: Server, zoo: Path, cache: Path) -> None:
    """Each prepares a folder of its own, and the first to finish puts it in place; nothing is left over."""
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: hub.fetch_model(NAME), range(8)))
    assert len(set(folders)) == 1
    assert same_model(folders[0], zoo / NAME)
    assert [path.name for path in folders[0].parents[1].iterdir()] == [folders[0].parent.name]


@pytest.mark.parametrize("change", ["altered", "short", "long", "missing", "endless"])
def test_what_is_not_the_published_file_is_refused(server: Server, cache: Path, change: str) -> None:
    """One line that names the file; nothing gets into the cache, and the right file is accepted afterwards."""
    file, data = f"{NAME}.zip", server.files[f"{NAME}.zip"]
    changed = {"altered": data[:-1] + bytes([data[-1] ^ 1]), "short": data[:-10], "long": data + b"x"}
    server.files.pop(file)
    server.files |= {file: changed[change]} if change in changed else {}
    server.endless = {file} if change == "endless" else set()
    with pytest.raises(DataError, match=file) as caught:
        ltnode.from_pretrained(NAME)
    assert "\n" not in str(caught.value)
    assert not cached_files(cache)
    server.files[file], server.endless = data, set()
    assert ltnode.from_pretrained(NAME).name == NAME


def test_an_index_without_end_is_not_read_to_the_end(server: Server) -> None:
    server.endless = {INDEX}
    with pytest.raises(DataError, match="must have at most 4,194,304 bytes"):
        ltnode.from_pretrained(NAME)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[", "gopher://x"])
def test_a_redirect_out_of_the_web_is_not_followed(server: Server, target: str) -> None:
    server.redirects = {f"{NAME}.zip": target}
    with pytest.raises(DataError, match=f"{NAME}.zip"):
        ltnode.from_pretrained(NAME)


def test_a_redirect_within_the_web_is_followed(server: Server, zoo: Path) -> None:
    """Releases answer with the address of a storage server."""
    server.files["elsewhere"] = server.files.pop(f"{NAME}.zip")
    server.redirects = {f"{NAME}.zip": f"{server.url}elsewhere"}
    assert same_model(NAME, zoo / NAME)


def test_a_redirect_from_an_encrypted_connection_to_an_open_one_is_refused() -> None:
    """Asked of the handler itself, because a server on this machine has no certificate."""
    import urllib.error
    import urllib.request
    from email.message import Message

    request = urllib.request.Request("https://example.org/x")
    with pytest.raises(urllib.error.HTTPError, match="is not followed"):
        download._NoDowngrade().redirect_request(request, None, 302, "Found", Message(), "http://example.org/x")
    assert download._NoDowngrade().redirect_request(request, None, 302, "Found", Message(), "https://example.org/y")


def test_a_hostile_run_folder_with_a_right_checksum_is_refused_as_any_other(
    zoo: Path, tmp_path: Path, cache: Path, monkeypatch
) -> None:
    """The checksum says who packed it, not that it is harmless: the checks of run folders apply."""
    folder = Path(shutil.copytree(zoo / NAME, tmp_path / "hostile" / NAME))
    hub.pack_models(folder.parent, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    config["model"]["options"] = {"width": 10**9}
    (folder / "config.json").write_text(json.dumps(config))
    hub.pack_models(folder.parent, tmp_path / "out")
    monkeypatch.setenv("LTNODE_MODELS", str(tmp_path / "out"))
    with pytest.raises(CheckpointError):
        ltnode.from_pretrained(NAME)


@pytest.mark.parametrize("bad", ["ftp://example.org/models", "nowhere", "file:///etc"])
def test_a_place_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("LTNODE_MODELS", bad)
    with pytest.raises(InputError, match="LTNODE_MODELS must be a folder or start with http:// or https://"):
        ltnode.from_pretrained(NAME)


def test_a_cache_that_cannot_be_written_is_named(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LTNODE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="choose another cache folder with LTNODE_CACHE"):
        ltnode.from_pretrained(NAME)


def test_a_release_is_verified_by_the_checksums_in_the_package(
    server: Server, packed: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is in the metadata of the package, and the index of the server is never asked for: it could be forged."""
    monkeypatch.delenv("LTNODE_MODELS")
    monkeypatch.setattr(places, "_CLONE", tmp_path / "no clone")
    monkeypatch.setattr(places, "_release_address", lambda: server.url)
    monkeypatch.setattr(places, "_BUILT_IN", packed / INDEX)
    assert same_model(NAME, zoo / NAME)
    assert asked(server) == [f"{NAME}.zip"]
    server.files["node-points.zip"] = bytes(len(server.files["node-points.zip"]))
    with pytest.raises(DataError, match=r"node-points.zip of .* is not the published file"):
        ltnode.from_pretrained("node-points")


def test_a_build_without_an_address_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LTNODE_MODELS", raising=False)
    monkeypatch.setattr(places, "_CLONE", tmp_path / "no clone")
    monkeypatch.setattr(places, "_release_address", lambda: None)
    with pytest.raises(InputError, match="set LTNODE_MODELS to a folder or an address"):
        ltnode.from_pretrained(NAME)


def test_packing_gives_the_same_bytes_every_time(zoo: Path, packed: Path, tmp_path: Path) -> None:
    """Times, owners and the order of files do not matter, so that checksums can be published before the archives."""
    shutil.copytree(zoo, tmp_path / "copy")
    for path in sorted((tmp_path / "copy" / NAME).iterdir(), reverse=True):
        path.write_bytes(path.read_bytes())
    hub.pack_models(tmp_path / "copy", tmp_path / "again")
    assert {p.name: p.read_bytes() for p in packed.iterdir()} == {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()}


def test_only_finished_runs_are_packed(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a folder of run folders"):
        hub.pack_models(tmp_path)
    shutil.copytree(zoo, tmp_path / "zoo")
    (tmp_path / "zoo" / NAME / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not the folder of a finished run"):
        hub.pack_models(tmp_path / "zoo")


def test_a_copy_is_ones_own(server: Server, zoo: Path, tmp_path: Path) -> None:
    folder = hub.copy_model(NAME, tmp_path / "runs" / "mine")
    assert not hub.is_cached(folder)
    assert same_model(folder, zoo / NAME)
    with pytest.raises(CheckpointError, match="exists already"):
        hub.copy_model(NAME, folder)
