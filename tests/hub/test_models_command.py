"""`ltnode models`, and commands that take the name of a model in place of a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ltnode
from ltnode import hub
from ltnode.cli.app import make_app

NAME = "lt-node-points"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(make_app(), [str(word) for word in words], prog_name="ltnode")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo with one trained run."""
    zoo = tmp_path_factory.mktemp("zoo")
    data = ltnode.data.gap_data(40, 0)
    config = ltnode.TrainConfig(epochs=1, device="cpu")
    ltnode.fit(ltnode.build("lt-node", data, seed=0, width=4), data, config, out=zoo / NAME)
    shutil.rmtree(zoo / NAME / "checkpoints", ignore_errors=True)
    return zoo


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the archive of the run, as LTNODE_MODELS names it; the current folder is another one."""
    hub.pack_models(trained, tmp_path / "place")
    monkeypatch.setenv("LTNODE_MODELS", str(tmp_path / "place"))
    monkeypatch.setenv("LTNODE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("points.csv").write_text("0.5\n1.0\n")
    return tmp_path / "place"


def test_the_list_says_what_is_on_this_machine(place: Path) -> None:
    before = run("models")
    assert before.exit_code == 0, before.output
    assert NAME in before.stdout
    assert before.stdout.split().count("no") == 1
    assert run("models", "fetch", NAME).exit_code == 0
    assert "yes" in run("models").stdout.split()


def test_predict_takes_a_name(place: Path, trained: Path) -> None:
    """The same rows as from the folder that was packed."""
    by_name, by_path = (run("predict", model, "points.csv", "--json") for model in (NAME, trained / NAME))
    assert by_name.exit_code == 0, by_name.output
    assert by_name.stdout == by_path.stdout


def test_evaluate_and_report_take_a_name(place: Path) -> None:
    evaluated = run("evaluate", NAME, "--data", "synthetic", "--protocols", "regression", "--limit", "10", "--draws", "0")
    assert evaluated.exit_code == 0, evaluated.output
    reported = run("report", NAME, "--out", "report")
    assert reported.exit_code == 0, reported.output
    assert Path("report/index.html").exists()


@pytest.mark.parametrize("command", [("calibrate", "--data", "points.csv"), ("operating-point",)])
def test_commands_that_change_a_run_say_how_to_get_a_copy(place: Path, command: tuple[str, ...]) -> None:
    """What they advise works."""
    result = run(command[0], NAME, *command[1:])
    assert result.exit_code == 2
    advice = f"ltnode models fetch {NAME} --out runs/{NAME}"
    assert advice in " ".join(result.stderr.split())
    assert run(*advice.split()[1:]).exit_code == 0
    assert ltnode.load(f"runs/{NAME}")


def test_a_name_that_nobody_has_is_one_line(place: Path) -> None:
    result = run("predict", "lt-node-point", "points.csv")
    assert result.exit_code == 2
    assert "Did you mean 'lt-node-points'" in " ".join(result.stderr.split())


def test_pack_makes_a_place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("models", "pack", trained, "--out", tmp_path / "packed")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {"index.json", f"{NAME}.zip"}
