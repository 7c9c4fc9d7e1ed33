"""Sessions of limited time: what they do, that they may be stopped anywhere, and how their archives are merged.

Only the data sets are replaced, by 48 images of 8x8 pixels, and the worker processes, which would load the real ones.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tiny_images import InProcess, tiny_data, tiny_paper
from typer.testing import CliRunner, Result

from ltnode.cli.app import make_app
from ltnode.cluster.executor import Task
from ltnode.errors import ConfigError, DataError
from ltnode.report.aggregate import Measured
from paper.reproduce.commands import images as command_module
from paper.reproduce.commands import session as merge_module
from paper.reproduce.edition import packing, parts, session
from paper.reproduce.edition.packing import merge, pack_results, pack_runs
from paper.reproduce.edition.parts import Background, Part, edition_parts
from paper.reproduce.edition.retraining import Repeated, agrees
from paper.reproduce.edition.session import TimeOverError, stopped_after
from paper.reproduce.images.cells import Places
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import read_result
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
    for module in (session, parts):
        monkeypatch.setattr(module, "make_executor", lambda *args, **options: InProcess())


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
    for name, words in (("turn", ()), ("session", ("--resume", "--minutes", "10", "--pack", str(tmp_path / "pack")))):
        result = command(tiny_paper(tmp_path / name / "paper"), *words)
        assert result.exit_code == 0, result.output
    assert "0 of 2 cells done; next" in result.output
    for name in (NODE, LT):
        turn, made = (tmp_path / side / "paper" / "results" / name for side in ("turn", "session"))
        assert comparable(made) == comparable(turn)
        content = json.loads(made.read_text())
        assert content["training"]["concurrent_runs"] == 2
        protocols = content["protocols"]
        assert [part["provenance"]["concurrent_runs"] for part in protocols.values()] == [1, 2, 2, 2]
        # The time of a prediction means something only where nothing else used the device.
        assert protocols["clean"]["cost"]["seconds_per_1000"] > 0
        assert protocols["rotation"]["cost"] is None
    again = command(tmp_path / "session" / "paper", "--resume")
    assert again.exit_code == 0
    assert "next" not in again.output
    # Only results are packed: the next session needs nothing of complete cells.
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["results.zip"]


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

    def interrupted(self: session.Session, group: Any, cells: Any) -> None:
        begun(self, group[:1], cells)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(session.Session, "_complete", interrupted)
    assert command(paper, "--resume", "--pack", str(tmp_path / "pack")).exit_code == 130
    with zipfile.ZipFile(tmp_path / "pack" / "results.zip") as archive:
        assert archive.namelist() == [f"results/{NODE}"]


def test_a_failed_training_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    paper = tiny_paper(tmp_path / "paper")
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("epochs = 2", "epochs = 2\nlr = 1e30"))
    result = command(paper, "--resume")
    assert result.exit_code == 1, result.output
    assert "error: MNIST, NODE (paper), seed 0:" in result.output
    assert [path.name for path in (paper / "results").iterdir()] == [LT]


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
    assert sorted(path.name for path in (paper / "results").iterdir()) == [NODE, f"{SHORT.name}.json"]
    with zipfile.ZipFile(pack / "results.zip") as archive:
        assert sorted(archive.namelist()) == [f"results/{NODE}", f"results/{SHORT.name}.json"]
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
    recorded = {path.stem for path in (ROOT / "paper" / "results").glob("*.json") if not path.name.startswith("images-")}
    assert recorded <= {part.name for part in found}
    assert "synthetic" in found[0].name  # hours, while a motivating task takes a minute
    assert {part.name for part in edition_parts(tmp_path)} == {part.name for part in found}


def test_a_failed_experiment_on_the_cpu_is_reported() -> None:
    task = Task("bad", "paper.reproduce.elsewhere:motivating_task", {"no": "argument"})
    background = Background(InProcess(), [task])
    background.wait()
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


def result_file(folder: Path, protocols: tuple[str, ...], weights: str = "w") -> Path:
    """A result file with some protocols."""
    part = {"options": {}, "draw_seed": 0, "provenance": {}, "cost": None, "rows": [{"metric": "error", "n": 1, "value": 0.1}]}
    content = {
        "format": 1,
        "experiment": "images",
        "data": "mnist",
        "model": "node",
        "preset": "paper",
        "variant": None,
        "seed": 0,
    }
    content |= {"weights_sha256": weights, "learnt": {"of": weights}, "protocols": dict.fromkeys(protocols, part)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NODE
    path.write_text(json.dumps(content))
    return path


def test_merging_completes_results_and_replaces_none(tmp_path: Path) -> None:
    """Protocols of the same weights are added in their order; other weights are reported and taken only on request."""
    places = Places(tmp_path / "runs", tmp_path / "results")
    for name, protocols, weights in (("a", ("rotation",), "w"), ("b", ("clean", "rotation"), "w"), ("c", ("clean",), "other")):
        pack_results(tmp_path / name, [result_file(tmp_path / f"{name}-results", protocols, weights), tmp_path / "missing.json"])
    a, b, c = (tmp_path / name / "results.zip" for name in "abc")
    assert merge(a, places).new == [NODE]
    assert merge(a, places) == packing.Merged()
    assert merge(b, places).completed == [NODE]
    merged = (places.out / NODE).read_bytes()
    assert list(read_result(places.out / NODE).protocols) == ["clean", "rotation"]
    for archive in (a, b):
        assert merge(archive, places) == packing.Merged()
    assert merge(c, places).kept == [NODE]
    assert (places.out / NODE).read_bytes() == merged
    assert merge(c, places, overwrite=True).new == [NODE]
    assert read_result(places.out / NODE).content["weights_sha256"] == "other"


def test_archives_of_runs_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest checkpoint is packed, a second archive begins where the first is full, and old archives are removed."""
    runs = []
    for name in ("one", "two"):
        for step in ("step-0000000001", "step-0000000002"):
            (tmp_path / name / "checkpoints" / step).mkdir(parents=True)
            (tmp_path / name / "checkpoints" / step / "state.json").write_bytes(b"x" * 600)
        (tmp_path / name / "config.json").write_text("{}")
        runs.append(tmp_path / name)
    monkeypatch.setattr(packing, "LARGEST_ARCHIVE", 1000)
    pack_runs(tmp_path / "pack", runs)
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == ["runs-1.zip", "runs-2.zip"]
    with zipfile.ZipFile(tmp_path / "pack" / "runs-1.zip") as archive:
        assert archive.namelist() == ["runs/one/checkpoints/step-0000000002/state.json", "runs/one/config.json"]
    pack_runs(tmp_path / "pack", runs[:1])
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["runs-1.zip"]


@pytest.mark.parametrize("name", ["../results/x.json", "results/../x.json", "runs/a/../../b", "/results/x.json", "other/x.json"])
def test_archives_that_hold_something_else_are_refused(tmp_path: Path, name: str) -> None:
    """Nothing of such an archive is written, not even the good part."""
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("results/good.json", "{}")
        archive.writestr(name, "{}")
    places = Places(tmp_path / "runs", tmp_path / "results")
    with pytest.raises(DataError, match="no archive of a session"):
        merge(tmp_path / "bad.zip", places)
    assert not places.out.exists()


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04 and nothing more")
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("results/x.json", "{")
    for path in (tmp_path / "cut.zip", tmp_path / "text.zip", tmp_path / "none.zip"):
        with pytest.raises(DataError, match="is damaged"):
            merge(path, Places(tmp_path / "runs", tmp_path / "results"))


def test_cells_are_trained_again_and_compared_with_the_record(tmp_path: Path) -> None:
    """Three seeds are recorded; a cell that is trained again is the same on a CPU, and so agrees. The choice is recorded."""
    paper = tiny_paper(tmp_path / "paper", ("node",))
    assert command(paper, "--seeds", "0-2").exit_code == 0
    file = paper / "grid" / "mnist-node.toml"
    file.write_text(file.read_text().replace("seeds = [0]", "seeds = [0, 1, 2]"))
    words = ["reproduce", "retrain", "--paper", str(paper), "--work", str(tmp_path / "work"), "--pack", str(tmp_path / "pack")]
    made = CliRunner().invoke(APP, [*words, "--cells", "1", "--choice", "3"])
    assert made.exit_code in (0, 1), made.output
    (path,) = (paper / "results").glob("retrained-*.json")
    content = json.loads(path.read_text())
    assert content["choice"] == 3
    numbers = {entry["name"]: entry for entry in content["numbers"]}
    assert len(numbers["test error"]["recorded"]) == 3
    assert numbers["test error"]["again"] == numbers["test error"]["recorded"][int(content["cell"][-1])]
    assert content["agrees"] is (made.exit_code == 0)
    with zipfile.ZipFile(tmp_path / "pack" / "results.zip") as archive:
        assert archive.namelist() == [f"results/{path.name}"]
    assert CliRunner().invoke(APP, [*words, "--cells", "4"]).exit_code == 2


def test_deviations_are_those_of_a_sample() -> None:
    """1, 2 and 3 have a mean of 2 and a standard deviation (ddof 1) of 1; without a deviation only the same number agrees."""
    record = Measured((1.0, 2.0, 3.0))
    assert Repeated("x", record, 3.5).deviations == pytest.approx(1.5)
    assert [Repeated("x", Measured((1.0, 1.0)), value).deviations for value in (1.0, 1.1)] == [0.0, float("inf")]
    assert agrees([Repeated("test error", record, 3.9), Repeated("log-likelihood", record, 9.0)])
    assert not agrees([Repeated("test error", record, 4.1)])
    assert not agrees([])
