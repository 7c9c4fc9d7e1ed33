"""Import, verification, cache and loading of the image sets, with tiny files instead of the official ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    TinySet,
    cifar_archive,
    cifar_files,
    describe_as_official,
    files_of,
    idx_files,
    svhn_files,
    tiny_set,
    write_files,
)

from ltnode.data import SPECS, Dataset, contact_sheet, describe, import_files, info, load, names, specs
from ltnode.data import cache as cache_module
from ltnode.data.cache import data_root
from ltnode.errors import DataError, InputError

SETS = ("mnist", "fashion-mnist", "cifar10", "svhn")


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> dict[str, TinySet]:
    """Tiny content for every set that counts as the official one."""
    contents = {name: tiny_set(name, seed=k) for k, name in enumerate(SETS)}
    for name, content in contents.items():
        describe_as_official(monkeypatch, name, content)
    return contents


def holds(data: Dataset, content: TinySet) -> None:
    for got, want in ((data.train, content.train), (data.test, content.test)):
        assert got.x.dtype == torch.uint8
        assert got.y.dtype == torch.int64
        np.testing.assert_array_equal(got.x.numpy(), want.x)
        np.testing.assert_array_equal(got.y.numpy(), want.y)


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


LAYOUTS = {
    "idx.gz": ("mnist", "", idx_files),
    "idx": ("mnist", "", lambda c: idx_files(c, compressed=False)),
    "idx, other names": (
        "fashion-mnist",
        "",
        lambda c: {k.replace("-idx", ".idx"): v for k, v in idx_files(c, compressed=False).items()},
    ),
    "idx, folder of another tool": ("fashion-mnist", "FashionMNIST/raw", idx_files),
    "cifar binary": ("cifar10", "cifar-10-batches-bin", cifar_files),
    "cifar python": ("cifar10", "cifar-10-batches-py", lambda c: cifar_files(c, "py")),
    "cifar binary archive": ("cifar10", "", cifar_archive),
    "cifar python archive": ("cifar10", "", lambda c: cifar_archive(c, "py")),
    "svhn": ("svhn", "svhn", svhn_files),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_official_files_in_every_layout_are_imported_and_loaded(
    tmp_path: Path, official: dict[str, TinySet], layout: str
) -> None:
    """The content is exact, and the provenance is verified."""
    name, folder, make = LAYOUTS[layout]
    write_files(tmp_path / "files" / folder, make(official[name]))
    state = import_files(name, tmp_path / "files", tmp_path / "root")
    assert (state.status, state.verified, state.n_train, state.n_test) == ("ready", True, 20, 10)
    shutil.rmtree(tmp_path / "files")
    data = load(name, tmp_path / "root")
    holds(data, official[name])
    assert data.provenance()["verified"]
    assert data.checksums["train_x"] == f"md5:{specs.image_spec(name).train.x_md5}"


def test_an_archive_itself_can_be_named(tmp_path: Path, official: dict[str, TinySet]) -> None:
    write_files(tmp_path, cifar_archive(official["cifar10"]))
    assert import_files("cifar10", tmp_path / "cifar-10-binary.tar.gz", tmp_path).status == "ready"


def test_a_loaded_set_has_the_tables_constants(tmp_path: Path, official: dict[str, TinySet]) -> None:
    for name in SETS:
        write_files(tmp_path / name, files_of(name, official[name]))
        data, spec = load(name, tmp_path), SPECS[name]
        assert (data.normalise, data.augment, data.ood) == (spec.normalise, spec.augment, spec.ood)
        assert data.class_names == spec.class_names
        assert (data.name, data.n_classes, data.input_shape) == (name, 10, spec.shape)


def test_the_table_is_the_papers() -> None:
    """Constants, crops and OOD pairs of the paper's experiments; the pairs are symmetric."""
    assert {n: (s.augment.padding, s.augment.flip) for n, s in SPECS.items()} == {
        "mnist": (2, False),
        "fashion-mnist": (2, False),
        "cifar10": (4, True),
        "svhn": (4, False),
    }
    assert all(SPECS[spec.ood].ood == name for name, spec in SPECS.items())
    assert all(SPECS[spec.ood].shape == spec.shape for spec in SPECS.values())
    assert SPECS["svhn"].content_source == "reconstructed"
    assert "non-commercial" in SPECS["svhn"].licence
    for spec in SPECS.values():
        assert set(spec.downloads) <= set(spec.file_md5)
        assert all(len(md5) == 32 for md5 in spec.file_md5.values())


def test_official_files_in_the_data_folder_are_imported_on_loading(tmp_path: Path, official: dict[str, TinySet]) -> None:
    write_files(tmp_path / "svhn", svhn_files(official["svhn"]))
    assert describe("svhn", tmp_path).status == "importable"
    holds(load("svhn", tmp_path), official["svhn"])
    assert describe("svhn", tmp_path).status == "ready"


def test_the_environment_names_the_data_folder(
    tmp_path: Path, official: dict[str, TinySet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTNODE_DATA", str(tmp_path))
    import_files("mnist", write_files(tmp_path / "files", idx_files(official["mnist"])))
    holds(load("mnist"), official["mnist"])
    monkeypatch.delenv("LTNODE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "ltnode" or os.name != "posix"
    assert data_root(tmp_path) == tmp_path


def test_loaded_pixels_are_a_memory_map_that_cannot_change_the_files(tmp_path: Path, official: dict[str, TinySet]) -> None:
    write_files(tmp_path / "mnist", idx_files(official["mnist"]))
    load("mnist", tmp_path)
    data = load("mnist", tmp_path)
    assert "npy" in Path("/proc/self/maps").read_text() or not Path("/proc/self/maps").exists()
    data.train.x.fill_(0)
    holds(load("mnist", tmp_path), official["mnist"])


def test_limit_takes_training_examples_only(tmp_path: Path, official: dict[str, TinySet]) -> None:
    write_files(tmp_path / "mnist", idx_files(official["mnist"]))
    data = load("mnist", tmp_path, limit=7)
    assert (data.n_train, len(data.test)) == (7, 10)
    assert load("mnist", tmp_path, limit=1000).n_train == 20
    assert load("gap", limit=30).n_train == 30


def test_altered_content_needs_unverified_and_is_recorded(tmp_path: Path, official: dict[str, TinySet]) -> None:
    """One pixel that differs by one is enough; a rejected import writes nothing, an accepted one is recorded."""
    content = official["mnist"]
    content.train.x[3, 0, 5, 5] ^= 1
    folder = write_files(tmp_path / "files", idx_files(content))
    with pytest.raises(DataError, match=r"not the official MNIST files .train_x differ.*--unverified"):
        import_files("mnist", folder, tmp_path / "root")
    assert everything_below(tmp_path / "root") == []
    state = import_files("mnist", folder, tmp_path / "root", unverified=True)
    assert (state.verified, state.source) == (False, "unverified")
    data = load("mnist", tmp_path / "root")
    holds(data, content)
    assert not data.verified
    assert data.provenance()["source"] == "unverified"


def test_another_set_in_the_same_format_is_refused(tmp_path: Path, official: dict[str, TinySet]) -> None:
    folder = write_files(tmp_path / "files", idx_files(official["fashion-mnist"]))
    with pytest.raises(DataError, match="not the official MNIST files"):
        import_files("mnist", folder, tmp_path)


def test_the_official_svhn_files_are_recognised_by_their_md5(
    tmp_path: Path, official: dict[str, TinySet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table contains checksums of a reconstruction; official files differ slightly and are recognised by file."""
    reconstructed = tiny_set("svhn", seed=77)
    row = describe_as_official(monkeypatch, "svhn", official["svhn"])
    content_row = describe_as_official(monkeypatch, "svhn", reconstructed)
    mixed = replace(content_row, file_md5=row.file_md5)
    monkeypatch.setattr(specs, "SPECS", {**specs.SPECS, "svhn": mixed})
    for content, source in ((official["svhn"], "official"), (reconstructed, "reconstructed")):
        state = import_files("svhn", write_files(tmp_path / source, svhn_files(content)), tmp_path / f"root-{source}")
        assert (state.source, state.verified) == (source, True)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("unverified", [True, False])
def test_a_truncated_file_is_refused_and_nothing_is_written(
    tmp_path: Path, official: dict[str, TinySet], name: str, unverified: bool
) -> None:
    """unverified=True allows other content but not a damaged file. The previous set stays."""
    files = files_of(name, official[name])
    first = next(iter(files))
    import_files(name, write_files(tmp_path / "good", files), tmp_path / "root")
    before = everything_below(tmp_path / "root")
    folder = write_files(tmp_path / "bad", files | {first: files[first][:-200]})
    with pytest.raises(DataError, match="not a valid"):
        import_files(name, folder, tmp_path / "root", unverified=unverified)
    assert everything_below(tmp_path / "root") == before
    holds(load(name, tmp_path / "root"), official[name])


@pytest.mark.parametrize("name", SETS)
def test_a_missing_file_is_named(tmp_path: Path, official: dict[str, TinySet], name: str) -> None:
    files = cifar_files(official[name]) if name == "cifar10" else files_of(name, official[name])
    missing = list(files)[1]
    folder = write_files(tmp_path / name, {file: data for file, data in files.items() if file != missing})
    for attempt in (lambda: import_files(name, folder, tmp_path / "root"), lambda: load(name, tmp_path)):
        with pytest.raises(DataError, match=f"incomplete: {missing.removesuffix('.gz')}.* missing"):
            attempt()
    assert describe(name, tmp_path).status == "incomplete"
    assert not (tmp_path / "root").exists()


def test_shapes_labels_and_lengths_must_fit_even_unverified(tmp_path: Path, official: dict[str, TinySet]) -> None:
    content = official["mnist"]
    cases = {
        "images of MNIST must have shape": TinySet(content.train._replace(x=content.train.x[..., :20]), content.test),
        "20 images but 19 labels": TinySet(content.train._replace(y=content.train.y[1:]), content.test),
        "must lie in 0..9, not 12": TinySet(content.train, content.test._replace(y=content.test.y + 3)),
        "0 images but 0 labels": TinySet(content.train._replace(x=content.train.x[:0], y=content.train.y[:0]), content.test),
    }
    for why, wrong in cases.items():
        folder = write_files(tmp_path / why, idx_files(wrong))
        with pytest.raises(DataError, match=why):
            import_files("mnist", folder, tmp_path / "root", unverified=True)


def test_a_set_that_is_not_there_names_the_commands(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ltnode data fetch cifar10.*ltnode data import cifar10 DIR"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"contains no CIFAR-10 files; expected data_batch_1\.bin"):
        import_files("cifar10", tmp_path, tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        import_files("cifar10", tmp_path / "nowhere", tmp_path)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'cifar-10'. Did you mean 'cifar10'\?"):
        load("cifar-10")
    with pytest.raises(InputError, match="Did you mean 'mnist'"):
        import_files("minst", ".")
    assert {"mnist", "fashion-mnist", "cifar10", "svhn", "synthetic", "gap", "concentric", "reflection"} == set(names())


def test_info_lists_every_set_with_its_state(tmp_path: Path, official: dict[str, TinySet]) -> None:
    import_files("mnist", write_files(tmp_path / "files", idx_files(official["mnist"])), tmp_path)
    write_files(tmp_path / "svhn", svhn_files(official["svhn"]))
    states = {entry.name: entry for entry in info(tmp_path)}
    assert [states[name].status for name in SETS] == ["ready", "missing", "missing", "importable"]
    mnist = states["mnist"]
    on_disk = sum(path.stat().st_size for path in mnist.folder.glob("*.npy"))
    assert (mnist.n_bytes, mnist.source, mnist.shape) == (on_disk, "official", (1, 28, 28))
    assert states["cifar10"].verified is None


def _damages(folder: Path) -> dict[str, object]:
    def pixels(path: Path) -> Path:
        return next(path.glob("train_x*.npy"))

    def flip_a_bit(path: Path) -> None:
        data = bytearray(pixels(path).read_bytes())
        data[-5] ^= 1
        pixels(path).write_bytes(data)
        os.utime(pixels(path), ns=(1, 1))

    def another_format(path: Path) -> None:
        meta = json.loads((path / "meta.json").read_text())
        (path / "meta.json").write_text(json.dumps(meta | {"format": 99}))

    return {
        "truncated array": lambda path: pixels(path).write_bytes(pixels(path).read_bytes()[:-1]),
        "altered array": flip_a_bit,
        "missing array": lambda path: pixels(path).unlink(),
        "truncated description": lambda path: (path / "meta.json").write_text((path / "meta.json").read_text()[:-9]),
        "empty description": lambda path: (path / "meta.json").write_text(""),
        "foreign description": lambda path: (path / "meta.json").write_text('{"format": 1}'),
        "later format": another_format,
        "binary description": lambda path: (path / "meta.json").write_bytes(b"\xff\xfe\x00"),
    }


@pytest.mark.parametrize("damage", _damages(Path()))
def test_a_damaged_cache_is_noticed_and_can_be_replaced(tmp_path: Path, official: dict[str, TinySet], damage: str) -> None:
    files = write_files(tmp_path / "files", idx_files(official["mnist"]))
    folder = import_files("mnist", files, tmp_path).folder
    _damages(folder)[damage](folder)  # type: ignore[operator]
    with pytest.raises(DataError, match=r"are damaged .*; delete that folder and fetch or import again"):
        load("mnist", tmp_path)
    assert describe("mnist", tmp_path).status == "damaged"
    assert import_files("mnist", files, tmp_path).status == "ready"
    holds(load("mnist", tmp_path), official["mnist"])


def test_a_cache_that_was_copied_is_checked_and_accepted(tmp_path: Path, official: dict[str, TinySet]) -> None:
    """The modification times differ, but the content is the same."""
    folder = import_files("mnist", write_files(tmp_path / "files", idx_files(official["mnist"])), tmp_path).folder
    for path in folder.glob("*.npy"):
        os.utime(path, ns=(1, 1))
    holds(load("mnist", tmp_path), official["mnist"])


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_a_failure_at_any_moment_of_writing_leaves_the_old_set(
    tmp_path: Path, official: dict[str, TinySet], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Five files are synced to the disk (four arrays, one description); the disk is full at one of them."""
    import_files("mnist", write_files(tmp_path / "old", idx_files(official["mnist"])), tmp_path / "root")
    new = tiny_set("mnist", seed=50)
    folder = write_files(tmp_path / "new", idx_files(new))
    before = everything_below(tmp_path / "root")
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device\); nothing was changed"):
        import_files("mnist", folder, tmp_path / "root", unverified=True)
    monkeypatch.undo()
    data = load("mnist", tmp_path / "root")
    assert np.array_equal(data.train.x.numpy(), official["mnist"].train.x)
    assert everything_below(tmp_path / "root") == before


@pytest.mark.posix
def test_a_limit_on_file_sizes_gives_a_clear_error(tmp_path: Path, official: dict[str, TinySet]) -> None:
    """The operating system limits files to 8 KiB; no part of the set is left."""
    folder = write_files(tmp_path / "files", idx_files(official["mnist"]))
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(DataError, match="could not write to"):
            import_files("mnist", folder, tmp_path / "root")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything_below(tmp_path / "root") == []


def test_a_folder_that_may_not_be_written_to_is_used_from_memory(
    tmp_path: Path, official: dict[str, TinySet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, because permissions do not restrict every user who runs the tests."""
    write_files(tmp_path / "mnist", idx_files(official["mnist"]))

    def refuse(**_: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache_module.tempfile, "mkstemp", refuse)
    holds(load("mnist", tmp_path), official["mnist"])
    assert not list(tmp_path.rglob("*.npy"))


def test_leftovers_of_killed_imports_are_removed_by_the_next_one(tmp_path: Path, official: dict[str, TinySet]) -> None:
    files = write_files(tmp_path / "files", idx_files(official["mnist"]))
    folder = tmp_path / "mnist" / "arrays"
    write_files(folder, {".partial-old": b"x", ".partial-young": b"x", "train_x-0000.npy": b"x"})
    os.utime(folder / ".partial-old", (1, 1))
    import_files("mnist", files, tmp_path)
    left = everything_below(folder)
    assert ".partial-young" in left  # may belong to a running process
    assert not {".partial-old", "train_x-0000.npy"} & set(left)


def test_processes_that_import_at_the_same_time_do_not_disturb_each_other(tmp_path: Path, official: dict[str, TinySet]) -> None:
    write_files(tmp_path / "mnist", idx_files(official["mnist"]))
    start, results = threading.Barrier(4), []

    def work() -> None:
        start.wait()
        results.append(load("mnist", tmp_path))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for data in results:
        holds(data, official["mnist"])


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_contact_sheet_shows_the_images_class_by_class(tmp_path: Path, official: dict[str, TinySet], name: str) -> None:
    """The tile in row c, column k is the k-th training image of class c, enlarged."""
    from PIL import Image

    write_files(tmp_path / name, files_of(name, official[name]))
    path = contact_sheet(name, tmp_path / "out" / "sheet.png", root=tmp_path, columns=3, zoom=2)
    sheet = np.asarray(Image.open(path))
    height = official[name].train.x.shape[2]
    row, column = 4 * (2 * height + 2), 90 + 1 * (2 * height + 2)
    tile = sheet[row : row + 2 * height : 2, column : column + 2 * height : 2]
    expected = np.broadcast_to(official[name].train.x[14].transpose(1, 2, 0), tile.shape)
    np.testing.assert_array_equal(tile, expected)
    with pytest.raises(InputError, match="needs uint8 images"):
        contact_sheet("gap", tmp_path / "gap.png")
