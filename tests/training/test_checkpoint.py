"""Checkpoints and run folders are complete or recognised as damaged, and writing one never damages the previous one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import ltnode
from ltnode import files
from ltnode.errors import CheckpointError
from ltnode.training import RunStatus, checkpoint
from ltnode.training.run import RunFolder
from training.tiny import Stop, TwoPhaseModel, assert_same_run, stop_at, tiny_config, tiny_data, tiny_model


def small(step: int) -> checkpoint.Checkpoint:
    return checkpoint.Checkpoint(step, {"model.w": torch.arange(3.0) + step, "n": torch.tensor(step)}, {"edges": [0.1, 1 / 3]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2):
        checkpoint.write(tmp_path, small(step), keep=2)
    return tmp_path


def test_a_checkpoint_comes_back_as_it_was(folder: Path):
    """Tensors and floats exactly."""
    found = checkpoint.latest(folder)
    assert found is not None and found.step == 2 and found.state == {"edges": [0.1, 1 / 3]}
    assert torch.equal(found.tensors["model.w"], torch.tensor([2.0, 3.0, 4.0])) and found.tensors["n"].item() == 2


def test_only_the_last_ones_are_kept(folder: Path):
    checkpoint.write(folder, small(3), keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-0000000002", "step-0000000003"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_file_truncated_at_any_byte_is_recognised_and_the_previous_checkpoint_used(folder: Path, name: str):
    """Every length from 0 to one byte less than the complete file."""
    path = folder / "step-0000000002" / name
    whole = path.read_bytes()
    assert len(whole) > 200
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = checkpoint.latest(folder)
        assert found is not None and found.step == 1, f"truncated to {length} bytes"
    path.write_bytes(whole)
    found = checkpoint.latest(folder)
    assert found is not None and found.step == 2


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_changed_byte_is_recognised(folder: Path, name: str):
    """Flip the lowest bit of every byte in turn."""
    path = folder / "step-0000000002" / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = checkpoint.latest(folder)
        assert found is not None and found.step == 1, f"byte {position} was changed"


def test_a_missing_file_is_recognised(folder: Path):
    for name in ("tensors.safetensors", "state.json"):
        shutil.copytree(folder / "step-0000000002", folder / "step-0000000003")
        (folder / "step-0000000003" / name).unlink()
        found = checkpoint.latest(folder)
        assert found is not None and found.step == 2
        shutil.rmtree(folder / "step-0000000003")


def test_when_all_are_damaged_no_run_is_restarted_silently(folder: Path):
    for path in folder.glob("*/state.json"):
        path.write_bytes(b"{")
    with pytest.raises(CheckpointError, match="all 2 checkpoints .* damaged"):
        checkpoint.latest(folder)
    assert checkpoint.latest(folder / "nothing here") is None


def test_nothing_in_a_run_folder_is_a_pickle(tmp_path):
    """Tensors are safetensors, the rest is JSON: no file starts like a pickle or a zip archive of one."""
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors"}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text())
        assert path.read_bytes()[:2] not in (b"\x80\x02", b"\x80\x04", b"PK")


def test_damage_to_the_newest_checkpoint_costs_its_work_and_nothing_else(tmp_path):
    """The run continues from the previous checkpoint and ends with the same bits."""
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=stop_at(12))
    newest = max((tmp_path / "run/checkpoints").iterdir()) / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


class FullDisk:
    """Refuses writes to chosen files with ENOSPC after half of the bytes, as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part_of_path: str, after: int) -> None:
        self.original, self.part, self.left = files._write_and_sync, part_of_path, after
        monkeypatch.setattr(files, "_write_and_sync", self)

    def __call__(self, path: Path, content: bytes) -> None:
        if self.part in str(path):
            self.left -= 1
            if self.left < 0:
                path.write_bytes(content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.original(path, content)


@pytest.mark.parametrize(("part", "after"), [("tensors.safetensors", 3), ("state.json", 2), ("model.safetensors", 0)])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch: pytest.MonkeyPatch, part: str, after: int):
    """The error is clear and no temporary files remain; with free space the resumed run ends with the same weights."""
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        FullDisk(patch, part, after)
        with pytest.raises(CheckpointError, match="No space left on device.*resume"):
            ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run")
    assert not list((tmp_path / "run").rglob(f"{files.TEMPORARY}*"))
    assert checkpoint.latest(tmp_path / "run/checkpoints") is not None
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_log_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, *arguments: object, **options: object) -> object:
        if self.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(self, *arguments, **options)

    original = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: No space left"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "run")


@pytest.mark.slow
def test_a_really_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    """Uses a tmpfs that holds one and a half checkpoints, which requires the permission to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        config = tiny_config(keep_checkpoints=2)
        ltnode.fit(TwoPhaseModel(400), tiny_data(), config, out=tmp_path / "whole")
        size = sum(path.stat().st_size for path in max((tmp_path / "whole/checkpoints").iterdir()).iterdir())
        # Fill the disk so that the first checkpoint fits and the second does not.
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filling").write_bytes(bytes(free - size - size // 2 - 20_000))
        with pytest.raises(CheckpointError, match="No space left on device"):
            ltnode.fit(TwoPhaseModel(400), tiny_data(), config, out=disk / "run")
        assert checkpoint.latest(disk / "run/checkpoints") is not None
        (disk / "filling").unlink()
        ltnode.fit(TwoPhaseModel(400), tiny_data(), config, out=disk / "run", resume=True)
        assert_same_run(tmp_path / "whole", disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"already holds a run \(complete\).*resume=True"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_folder_is_left_alone(tmp_path, resume: bool):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a run folder"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(CheckpointError, match="is a file"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(), out=tmp_path / "thesis.txt", resume=resume)


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "damaged"), ('{"format": 7}', "not written by ltnode"), ('{"format": 1, "kind": "run"}', "damaged")],
)
def test_a_damaged_or_foreign_configuration_is_recognised(tmp_path, content: str, words: str):
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    (tmp_path / "run/config.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run", resume=True)


def test_an_empty_folder_or_one_with_leftovers_is_a_new_run(tmp_path):
    (tmp_path / f"{files.TEMPORARY}config.json").write_text("{")
    run = ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path, resume=True)
    assert run.status is RunStatus.COMPLETE
    assert not list(tmp_path.glob(f"{files.TEMPORARY}*"))


def test_two_trainings_cannot_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(CheckpointError, match="another process is training"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")


def test_what_is_no_tensor_cannot_be_saved(tmp_path):
    class Odd(TwoPhaseModel):
        def get_extra_state(self) -> str:
            return "a note"

        def set_extra_state(self, state: str) -> None: ...

    with pytest.raises(CheckpointError, match=r"_extra_state is a str"):
        ltnode.fit(Odd(), tiny_data(), tiny_config(), out=tmp_path / "run")
