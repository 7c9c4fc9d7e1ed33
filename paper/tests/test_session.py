"""Sessions of limited time: what they do, and that they may be stopped anywhere.

Only the data sets are replaced, by 48 images of 8x8 pixels, and, except where a test is about them, the worker processes.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_images import InProcess, tiny_data, tiny_paper, tiny_store
from typer.testing import CliRunner, Result

import ltnode.data
from ltnode.cli.app import make_app
from ltnode.cluster.executor import Task
from ltnode.errors import ConfigError
from paper.reproduce.commands import images as command_module
from paper.reproduce.commands import session as merge_module
from paper.reproduce.edition import parts, session
from paper.reproduce.edition.background import Background, Waiting
from paper.reproduce.edition.parts import Part, edition_parts
from paper.reproduce.edition.stopping import TimeOverError, stopped_after
from paper.reproduce.images import cells as image_cells
from paper.reproduce.images import evaluation as image_evaluation
from paper.reproduce.images.grid import Cell
from paper.reproduce.one_dimensional.experiment import OTHERS

APP, ROOT = make_app(), Path(__file__).parents[2]
NODE, LT = "images-mnist-node-paper-seed0.json", "images-mnist-lt-node-paper-seed0.json"
__all__ = ["tiny_data"]
pytestmark = pytest.mark.usefixtures("tiny_data", "no_pages", "no_processes")


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command_module, merge_module):
        monkeypatch.setattr(module, "write_pages", lambda *args, **options: None)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "make_executor", lambda *args, **options: InProcess())


def command(paper: Path, *words: str) -> Result:
    folders = ["--paper", str(paper), "--runs", str(paper.parent / "runs")]
    return CliRunner().invoke(APP, ["reproduce", "images", *folders, "--presets", "paper", "--draws", "0", *words])


def comparable(path: Path) -> dict[str, Any]:
    """A result without times, costs and how many runs there were at the same time."""
    content: dict[str, Any] = json.loads(path.read_text())
    del content["training"]
    for part in content["protocols"].values():
        del part["provenance"], part["cost"]
    return content


def test_a_session_makes_the_same_results_as_the_cells_in_turn(tmp_path: Path) -> None:
    """Weights and numbers are equal, bit for bit; the session says what it does, and records how many runs shared the device."""
    session_words = ("--resume", "--together", "2", "--minutes", "10", "--pack", str(tmp_path / "pack"))
    for name, words in (("turn", ()), ("session", session_words)):
        result = command(tiny_paper(tmp_path / name / "paper"), *words)
        assert result.exit_code == 0, result.output
    assert "0 of 2 cells done" in result.output
    assert "2 of 2 cells done" in result.output
    for name in (NODE, LT):
        turn, made = (tmp_path / side / "paper" / "results" / name for side in ("turn", "session"))
        assert comparable(made) == comparable(turn)
        content = json.loads(made.read_text())
        assert content["training"]["concurrent_runs"] == 2
        # On a CPU cells are evaluated in turn, so the time of a prediction is that of nothing else.
        assert [part["provenance"]["concurrent_runs"] for part in content["protocols"].values()] == [1, 1, 1, 1]
        assert content["protocols"]["clean"]["cost"]["seconds_per_1000"] > 0
        # Written at the end, and by the clock, but not after every epoch, which the grid asks for.
        assert len(list((tmp_path / "session" / "runs").glob("*/checkpoints/step-*"))) == 2
    again = command(tmp_path / "session" / "paper", "--resume")
    assert again.exit_code == 0
    assert "expected" not in again.output
    # Only results and the record of the session are packed: the next session needs nothing of complete cells.
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["results.zip"]
    (record,) = (tmp_path / "session" / "paper" / "results").glob("session-*.json")
    content = json.loads(record.read_text())
    assert content["cells"] == ["mnist-node-paper-seed0", "mnist-lt-node-paper-seed0"]
    assert content["seconds"] > 0
    assert content["together"] == 2
    with zipfile.ZipFile(tmp_path / "pack" / "results.zip") as archive:
        assert f"results/{record.name}" in archive.namelist()


@pytest.fixture
def stored_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_data: None) -> Iterator[None]:
    """The tiny sets in the data folder, where other processes find them, too; one thread, as in those processes."""
    tiny_store(tmp_path / "data")
    monkeypatch.setenv("LTNODE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(image_evaluation, "SMALL_PART", 500)  # as in the other processes
    for module in (image_cells, image_evaluation):
        monkeypatch.setattr(module, "load_data", ltnode.data.load)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.posix
@pytest.mark.usefixtures("stored_data")
def test_evaluating_while_others_train_changes_no_number(tmp_path: Path) -> None:
    """Two processes evaluate what this one has trained: the numbers are those of one cell after the other, bit for bit.

    Where the time of a prediction is measured, `clean` was evaluated alone: for the first seed of a model.
    """
    words = {"turn": (), "session": ("--resume", "--together", "2", "--evaluators", "2")}
    for name, options in words.items():
        result = command(tiny_paper(tmp_path / name / "paper"), "--seeds", "0,1", *options)
        assert result.exit_code == 0, result.output
    assert "4 of 4 cells done" in result.output
    for seed in (0, 1):
        for name in (NODE, LT):
            file = name.replace("seed0", f"seed{seed}")
            turn, made = (tmp_path / side / "paper" / "results" / file for side in ("turn", "session"))
            assert comparable(made) == comparable(turn)
            parts_of = json.loads(made.read_text())["protocols"]
            shared = [part["provenance"]["concurrent_runs"] for part in parts_of.values()]
            assert shared == [1 if seed == 0 else 3, 3, 3, 3]
            assert (parts_of["clean"]["cost"] is None) is (seed == 1)


@pytest.mark.posix
def test_a_session_without_time_is_continued_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second of two epochs: the run is packed with its checkpoint, and continued elsewhere from the archive."""
    first, second = tiny_paper(tmp_path / "a" / "paper", ("lt-node",)), tiny_paper(tmp_path / "b" / "paper", ("lt-node",))
    whole = tiny_paper(tmp_path / "c" / "paper", ("lt-node",))
    build, pack = Cell.build, tmp_path / "pack"

    def slow(self: Cell, data: Any = None) -> Any:
        model = build(self, data)
        steps, constrain = iter(range(1, 1000)), model.after_step

        def after_step() -> None:
            constrain()
            if next(steps) == 3:
                signal.raise_signal(signal.SIGALRM)  # the time is over

        model.after_step = after_step
        return model

    with monkeypatch.context() as patched:
        patched.setattr(Cell, "build", slow)
        stopped = command(first, "--resume", "--minutes", "10", "--pack", str(pack))
    assert stopped.exit_code == 0, stopped.output
    assert "the time is over" in stopped.output
    assert not (first / "results").exists()
    assert [path.name for path in pack.iterdir()] == ["runs-1.zip"]
    merging = ["reproduce", "merge", str(pack / "runs-1.zip"), "--paper", str(second), "--runs", str(second.parent / "runs")]
    assert "1 unfinished runs: mnist-lt-node-paper-seed0" in CliRunner().invoke(APP, merging).output
    assert "nothing new" in CliRunner().invoke(APP, merging).output
    assert command(second, "--resume").exit_code == 0
    assert command(whole, "--resume").exit_code == 0
    assert comparable(second / "results" / LT) == comparable(whole / "results" / LT)
    assert "nothing new" in CliRunner().invoke(APP, merging).output  # a finished run is not set back


@pytest.mark.posix
def test_a_session_that_was_stopped_by_a_signal_packs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is taken away sends SIGTERM: status 130, and the results so far are in the archive."""
    paper = tiny_paper(tmp_path / "paper")
    begun = session.Session._complete

    def interrupted(self: session.Session, cells: Any) -> None:
        begun(self, cells[:1])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(session.Session, "_complete", interrupted)
    assert command(paper, "--resume", "--pack", str(tmp_path / "pack")).exit_code == 130
    with zipfile.ZipFile(tmp_path / "pack" / "results.zip") as archive:
        assert archive.namelist()[0] == f"results/{NODE}"
        assert LT not in str(archive.namelist())


def test_a_failed_training_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    paper = tiny_paper(tmp_path / "paper")
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("epochs = 2", "epochs = 2\nlr = 1e30"))
    result = command(paper, "--resume")
    assert result.exit_code == 1, result.output
    assert "error: MNIST, NODE (paper), seed 0:" in result.output
    assert "non-finite" in result.output or "NaN" in result.output
    assert [path.name for path in (paper / "results").glob("images-*")] == [LT]


SHORT = Part(
    "motivating-reflection-node-seed0-2it",
    "motivating_task",
    {"task": "reflection", "model": "node", "seed": 0, "steps": 2},
)


def test_a_whole_edition_has_the_experiments_on_the_cpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image cell and one small experiment; what is done is not done again, nor without --resume replaced."""
    paper, pack = tiny_paper(tmp_path / "paper", ("node",)), tmp_path / "pack"
    monkeypatch.setattr(merge_module, "edition_parts", lambda records: [SHORT])
    words = ["reproduce", "all", "--paper", str(paper), "--runs", str(tmp_path / "runs")]
    shown = CliRunner().invoke(APP, [*words, "--list"]).output
    assert "0 of 1 done: listed cells" in shown
    assert "0 of 1 done: 1-D and motivating experiments" in shown
    first = CliRunner().invoke(APP, [*words, "--pack", str(pack)])
    assert first.exit_code == 0, first.output
    made = sorted(path.name for path in (paper / "results").iterdir())
    assert made[:2] == [NODE, f"{SHORT.name}.json"]
    with zipfile.ZipFile(pack / "results.zip") as archive:
        assert sorted(archive.namelist()) == [f"results/{name}" for name in made]
    before = {path.name: path.read_bytes() for path in (paper / "results").iterdir()}
    assert CliRunner().invoke(APP, words).exit_code == 2
    assert CliRunner().invoke(APP, [*words, "--resume"]).exit_code == 0
    assert {path.name: path.read_bytes() for path in (paper / "results").iterdir()} == before
    assert "1 of 1 done: 1-D" in CliRunner().invoke(APP, [*words, "--list"]).output


def test_an_edition_has_five_seeds_of_every_small_experiment(tmp_path: Path) -> None:
    """Seven models and five end-times on the 1-D data, three models on three tasks; the names are those of the records.

    Rows that test why a number differs have one seed.
    """
    found = edition_parts(ROOT / "paper" / "results")
    assert len(found) == len({part.name for part in found}) == 5 * (7 + 5 + 9) + len(OTHERS)
    others = ("images-", "session-", "retrained-", "again-")
    recorded = {path.stem for path in (ROOT / "paper" / "results").glob("*.json") if not path.name.startswith(others)}
    assert recorded <= {part.name for part in found}
    assert "synthetic" in found[0].name  # hours, while a motivating task takes a minute
    assert {part.name for part in edition_parts(tmp_path)} == {part.name for part in found}


def test_a_failed_experiment_on_the_cpu_is_reported() -> None:
    task = Task("bad", "paper.reproduce.elsewhere:motivating_task", {"no": "argument"})
    background = Background(InProcess(), [Waiting(task)])
    background.finish()
    background.stop()
    assert (background.left, list(background.failed)) == (0, ["bad"])


def test_results_need_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "source_state", lambda: {"git_commit": None, "git_modified": None})
    with pytest.raises(ConfigError, match="set LTNODE_COMMIT"):
        session.require_commit()


def test_the_time_ends_a_block() -> None:
    """The alarm raises in the block; without a limit there is none, and the handlers of signals are restored."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeOverError), stopped_after(0.05):
        time.sleep(5)
    with stopped_after(float("inf")):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before


@pytest.mark.parametrize(("cuda", "numbers"), [(True, (6, 4)), (False, (1, 0))])
def test_a_session_suits_its_device(cuda: bool, numbers: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several trainings and evaluations share a GPU; on a CPU they would only wait for each other. What is given is taken."""
    monkeypatch.setattr(session, "choose_device", lambda name: torch.device("cuda" if cuda else "cpu"))
    assert session.Settings().numbers == numbers
    assert session.Settings(together=3, evaluators=2).numbers == (3, 2)
    assert session.Settings(evaluators=0).numbers == (numbers[0], 0)
