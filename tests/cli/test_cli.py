"""The command line: every command helps, says what is wrong in one line, and can be stopped and continued."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ltnode import cli
from ltnode.cli import console
from ltnode.cli.app import make_app
from ltnode.cli.commands.train import configuration
from ltnode.errors import ConfigError
from ltnode.training import TrainConfig, load, train_preset

APP = make_app()
TINY = ("--model", "lt-node", "--data", "synthetic", "--limit", "20", "--device", "cpu", "--set", "log_every=1")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words], prog_name="ltnode")


def every_command() -> Iterator[tuple[str, ...]]:
    """The words of every command and group, found by walking the command tree."""

    def walk(command: object, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return walk(typer.main.get_command(APP), ())


@pytest.mark.parametrize("words", list(every_command()), ids=lambda words: " ".join(words) or "ltnode")
def test_every_help_shows_an_example(words: tuple[str, ...]) -> None:
    """Someone who types --help can copy a line that names the command itself."""
    result = run(*words, "--help")
    assert result.exit_code == 0, result.output
    _, examples = re.split(r"Examples?:", result.output)
    assert " ".join(("ltnode", *words)) in examples


def test_the_promised_commands_are_there() -> None:
    """Guards the walk above: an empty tree would test nothing."""
    assert {("demo",), ("train",), ("data", "fetch"), ("data", "import"), ("data", "info"), ("data", "sheet")} <= set(
        every_command()
    )
    assert {("reproduce", "synthetic"), ("reproduce", "motivating")} <= set(every_command())


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"ltnode {cli.app.__version__}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--model", "lt-nod", "--data", "synthetic"), "unknown model 'lt-nod'. Did you mean 'lt-node'?"),
        (("train", "--model", "lt-node", "--data", "cifar"), "Did you mean 'cifar10'?"),
        (("train", "--model", "lt-node"), "--data is missing"),
        (("train", "--data", "synthetic"), "--model is missing"),
        ((*("train", *TINY), "--preset", "papers"), "Did you mean 'paper'?"),
        ((*("train", *TINY), "--set", "epoch=3"), "Did you mean 'epochs'?"),
        ((*("train", *TINY), "--set", "epochs"), "key=value"),
        ((*("train", *TINY), "--set", "epochs=0"), "epochs must be an integer >= 1, not 0"),
        ((*("train", *TINY), "--set", "model_options.widht=3"), "Did you mean 'width'?"),
        ((*("train", *TINY), "--device", "gpu"), "'cpu', 'cuda'"),
        (("train", "--config", "nowhere.toml"), "nowhere.toml"),
        (("data", "fetch", "minst"), "Did you mean 'mnist'?"),
        (("data", "import", "mnist", "nowhere"), "does not exist"),
        (("data", "sheet", "mnist", "--root", "."), "ltnode data fetch mnist"),
        (("reproduce", "synthetic", "--models", "lt-nod"), "Did you mean 'lt-node'?"),
        (("reproduce", "synthetic", "--seeds", "one"), "whole numbers separated by commas"),
        (("reproduce", "motivating", "--seeds", ""), "whole numbers separated by commas"),
    ],
)
@pytest.mark.no_typecheck
def test_a_mistake_gets_one_clear_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ltnode raises on purpose is one line on standard error with status 2, and never a traceback."""
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("**/*.safetensors"))


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors raised on purpose become one line; a bug keeps its traceback."""

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("ltnode.cli.commands.train.fit", broken)
    result = run("train", *TINY)
    assert isinstance(result.exception, ZeroDivisionError)


def test_training_writes_a_run_that_loads(tmp_path: Path) -> None:
    """The run folder of ``ltnode train`` is that of ``ltnode.fit``; without --resume it is never overwritten."""
    folder = tmp_path / "x"
    result = run("train", *TINY, "--seed", "7", "--set", "epochs=3", "--set", "model_options.width=8", "--out", folder)
    assert result.exit_code == 0, result.output
    assert f'ltnode.load("{folder.as_posix()}")' in result.output.replace("\n", "")
    assert "\x1b" not in result.output  # no colours, no bars: this is not a terminal
    saved = json.loads((folder / "config.json").read_text())
    assert (saved["train"]["seed"], saved["train"]["epochs"], saved["model"]["options"]["width"]) == (7, 3, 8)
    assert load(folder).field(load(folder).grid[0], load(folder).stem(load(folder).grid[:1, None].float())).shape == (1, 8)
    before = (folder / "model.safetensors").read_bytes()
    again = run("train", *TINY, "--seed", "7", "--set", "epochs=3", "--set", "model_options.width=8", "--out", folder)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    assert (folder / "model.safetensors").read_bytes() == before


def test_ctrl_c_says_how_to_go_on_and_resume_goes_on(tmp_path: Path) -> None:
    """SIGINT in the middle: status 130, one line, a checkpoint; --resume continues there and ends as if nothing had happened."""
    command = ("train", *TINY, "--set", "epochs=60")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run(*command, "--out", whole).exit_code == 0

    def interrupt() -> None:
        while not (stopped / "metrics.jsonl").exists():
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    result = run(*command, "--out", stopped)
    watcher.join()
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    assert not (stopped / "model.safetensors").exists()
    result = run(*command, "--out", stopped, "--resume")
    assert result.exit_code == 0, result.output
    assert "resumed from step " in result.stderr
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_options_come_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('model = "lt-node"\ndata = "synthetic"\npreset = "paper"\nepochs = 5\nlr = 0.5\n')
    config = configuration(file, {"model": "alt-node", "seed": 3}, ["lr=0.25"])
    expected = train_preset("alt-node", "synthetic", "paper").replace(epochs=5, lr=0.25, seed=3)
    assert config == expected
    assert configuration(None, {"model": "node", "data": "synthetic"}, []) == train_preset("node", "synthetic")
    with pytest.raises(ConfigError, match="not a TOML file"):
        file.write_text("model = ")
        configuration(file, {}, [])


def test_data_info_lists_every_set(tmp_path: Path) -> None:
    """In an empty folder all four are missing."""
    result = run("data", "info", "--root", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.count("missing") == 4


def test_a_list_of_numbers() -> None:
    assert console.numbers("0, 1,12") == [0, 1, 12]
    assert console.words("a,, b ") == ["a", "b"]


def test_without_typer_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import ltnode`` works without typer and rich; the command then says so instead of a traceback."""
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "ltnode.cli.app")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert "pip install typer" in str(stopped.value)


def test_the_entry_point_runs_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ltnode", "--version"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("ltnode ")


def test_training_without_a_folder_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("train", *TINY, "--set", "epochs=1", "--seed", "4").exit_code == 0
    assert TrainConfig.from_json(json.loads(Path("runs/synthetic-lt-node-seed4/config.json").read_text())["train"]).seed == 4
