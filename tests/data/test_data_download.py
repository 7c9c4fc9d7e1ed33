"""Downloads from a local server that can drop connections, change files or lack them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import TinySet, describe_as_official, files_of, idx_files, tiny_set
from web_server import Server, web_server

from ltnode import download
from ltnode.data import describe, fetch, load, specs
from ltnode.errors import DataError, InputError

IMAGES = "train-images-idx3-ubyte.gz"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    with web_server() as running:
        yield running


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch, server: Server) -> TinySet:
    """A tiny set on the server that counts as the official MNIST."""
    tiny = tiny_set("mnist")
    describe_as_official(monkeypatch, "mnist", tiny)
    server.files = idx_files(tiny)
    return tiny


def no_arrays(root: Path) -> bool:
    return not list(root.rglob("*.npy")) and not list(root.rglob("meta.json"))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "svhn"])
def test_a_set_is_downloaded_verified_and_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, name: str
) -> None:
    """The content is exact; the downloaded files are deleted, because the arrays contain everything."""
    tiny = tiny_set(name)
    describe_as_official(monkeypatch, name, tiny)
    server.files = files_of(name, tiny)
    state = fetch(name, tmp_path, progress=False, base_url=server.url)
    assert (state.status, state.verified) == ("ready", True)
    np.testing.assert_array_equal(load(name, tmp_path).train.x.numpy(), tiny.train.x)
    assert not (tmp_path / name / "downloads").exists()


def test_what_is_there_is_not_downloaded_again(tmp_path: Path, content: TinySet, server: Server) -> None:
    fetch("mnist", tmp_path, False, server.url)
    asked = len(server.requests)
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    assert len(server.requests) == asked == 4


def test_a_connection_that_breaks_midway_is_continued(tmp_path: Path, content: TinySet, server: Server) -> None:
    """The connection is lost after 500 and again after 300 more bytes; each request continues from there."""
    server.breaks = {IMAGES: [500, 300]}
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    assert [byte_range for path, byte_range in server.requests if path == IMAGES] == [None, "bytes=500-", "bytes=800-"]
    np.testing.assert_array_equal(load("mnist", tmp_path).train.x.numpy(), content.train.x)


def test_a_download_that_was_given_up_is_continued_by_the_next_call(tmp_path: Path, content: TinySet, server: Server) -> None:
    server.breaks = {IMAGES: [100, 100, 100]}
    with pytest.raises(DataError, match=r"lost after 300 of \d+ bytes.*run the command again to continue"):
        fetch("mnist", tmp_path, False, server.url, attempts=3)
    assert no_arrays(tmp_path)
    server.requests.clear()
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    assert server.requests[0] == (IMAGES, "bytes=300-")


def test_a_server_without_ranges_sends_everything_again(tmp_path: Path, content: TinySet, server: Server) -> None:
    server.ranges = False
    server.breaks = {IMAGES: [500]}
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    np.testing.assert_array_equal(load("mnist", tmp_path).train.x.numpy(), content.train.x)


@pytest.mark.parametrize("part", [b"something else", b"something else" * 5000])
def test_a_part_that_does_not_fit_is_dropped(tmp_path: Path, content: TinySet, server: Server, part: bytes) -> None:
    """A partial file of another file, shorter or longer than the right one, only costs a second download."""
    folder = tmp_path / "mnist" / "downloads"
    folder.mkdir(parents=True)
    (folder / f"{IMAGES}.part").write_bytes(part)
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    np.testing.assert_array_equal(load("mnist", tmp_path).train.x.numpy(), content.train.x)


def test_a_part_that_is_already_whole_is_taken(tmp_path: Path, content: TinySet, server: Server) -> None:
    """This happens if the process is killed between the last byte and the rename."""
    folder = tmp_path / "mnist" / "downloads"
    folder.mkdir(parents=True)
    (folder / f"{IMAGES}.part").write_bytes(server.files[IMAGES])
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"
    assert [path for path, _ in server.requests].count(IMAGES) == 1


@pytest.mark.parametrize("change", ["truncated", "altered"])
def test_a_file_that_is_not_the_official_one_is_refused(tmp_path: Path, content: TinySet, server: Server, change: str) -> None:
    """The transfer is complete, but the md5 differs."""
    data = server.files[IMAGES]
    server.files[IMAGES] = data[:-10] if change == "truncated" else data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(DataError, match=f"{IMAGES}: not the official file"):
        fetch("mnist", tmp_path, False, server.url)
    assert no_arrays(tmp_path)
    assert not (tmp_path / "mnist" / "downloads" / IMAGES).exists()
    assert describe("mnist", tmp_path).status == "missing"
    server.files[IMAGES] = data
    assert fetch("mnist", tmp_path, False, server.url).status == "ready"


def test_a_file_that_is_not_on_the_server_is_named(tmp_path: Path, content: TinySet, server: Server) -> None:
    """The file is requested only once, because retrying cannot help."""
    del server.files["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz: HTTP Error 404.*ltnode data import mnist DIR"):
        fetch("mnist", tmp_path, False, server.url)
    assert no_arrays(tmp_path)
    assert [path for path, _ in server.requests].count("t10k-labels-idx1-ubyte.gz") == 1


def test_the_next_address_is_tried(tmp_path: Path, content: TinySet, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(specs.image_spec("mnist"), urls=(server.url + "gone/", server.url))
    monkeypatch.setattr(specs, "SPECS", {**specs.SPECS, "mnist": row})
    assert fetch("mnist", tmp_path, False).status == "ready"


def test_no_server_at_all_is_a_clear_error(tmp_path: Path, content: TinySet) -> None:
    with pytest.raises(DataError, match="could not download MNIST: .*refused"):
        fetch("mnist", tmp_path, False, "http://127.0.0.1:9/", attempts=2)


def test_progress_is_told_up_to_the_whole_file(tmp_path: Path, content: TinySet, server: Server) -> None:
    events: list[tuple[str, int, int | None]] = []
    server.breaks = {IMAGES: [500]}
    fetch("mnist", tmp_path, lambda *event: events.append(event), server.url)
    images = [(done, total) for file, done, total in events if file == IMAGES]
    assert images == sorted(images)
    assert images[-1] == (len(server.files[IMAGES]), len(server.files[IMAGES]))
    assert {file for file, _, _ in events} == set(server.files)


def test_the_progress_bar_stays_quiet_without_a_terminal(
    tmp_path: Path, content: TinySet, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch("mnist", tmp_path, True, server.url)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_an_unverified_set_is_replaced_by_the_official_one(tmp_path: Path, content: TinySet, server: Server) -> None:
    from data_files import write_files

    from ltnode.data import import_files

    other = write_files(tmp_path / "other", idx_files(tiny_set("mnist", seed=9)))
    import_files("mnist", other, tmp_path, unverified=True)
    assert fetch("mnist", tmp_path, False, server.url).verified
    np.testing.assert_array_equal(load("mnist", tmp_path).train.x.numpy(), content.train.x)


def test_only_web_addresses_are_taken(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="http:// or https://"):
        fetch("mnist", tmp_path, False, "file:///etc/")
