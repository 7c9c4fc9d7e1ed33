"""The command line: every command has help with an example, reports errors in one line, and can be stopped and continued."""

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
from ltnode.errors import ConfigError, InputError
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
    """The help of every command ends with an example that can be copied."""
    result = run(*words, "--help")
    assert result.exit_code == 0, result.output
    _, examples = re.split(r"Examples?:", result.output)
    assert " ".join(("ltnode", *words)) in examples


def test_the_promised_commands_exist() -> None:
    """Guards the test above, which would test nothing on an empty tree."""
    assert {("demo",), ("train",), ("data", "fetch"), ("data", "import"), ("data", "info"), ("data", "sheet")} <= set(
        every_command()
    )
    assert {("reproduce", "synthetic"), ("reproduce", "motivating")} <= set(every_command())


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("trian",), "'train'"),
        (("data", "fetsh"), "'fetch'"),
        (("train", "--modle", "lt-node"), "--model"),
        (("serve", "--prot", "1", "runs/x"), "--port"),
        (("bench", "--sampels", "3"), "--samples"),
    ],
)
def test_a_mistyped_command_or_option_is_answered_with_the_nearest_one(words: tuple[str, ...], suggestion: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert suggestion in result.stderr


def test_every_command_stands_in_a_panel_of_the_help() -> None:
    """Commands appear in the order in which a newcomer needs them, and none is left out."""
    output = run("--help").output
    panels = ["Start here", "Train and evaluate", "Use a trained model", "Paper and speed"]
    positions = [output.index(panel) for panel in panels]
    assert positions == sorted(positions)
    names = {path.stem.replace("_", "-") for path in Path(cli.__file__).parent.glob("commands/*.py")} - {"--init--"}
    assert names == {words[0] for words in every_command() if words}


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
    """An error that ltnode raises on purpose gives one line on standard error and status 2, without a traceback."""
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("**/*.safetensors"))


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors raised on purpose are shortened to one line."""

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("ltnode.cli.commands.train.fit", broken)
    result = run("train", *TINY)
    assert isinstance(result.exception, ZeroDivisionError)


def test_training_writes_a_run_that_loads(tmp_path: Path) -> None:
    """``ltnode train`` writes the run folder of ``ltnode.fit`` and never overwrites one without --resume."""
    folder = tmp_path / "x"
    result = run("train", *TINY, "--seed", "7", "--set", "epochs=3", "--set", "model_options.width=8", "--out", folder)
    assert result.exit_code == 0, result.output
    assert f'ltnode.load("{folder.as_posix()}")' in result.output.replace("\n", "")
    assert "\x1b" not in result.output  # no colours and no progress bars without a terminal
    saved = json.loads((folder / "config.json").read_text())
    assert (saved["train"]["seed"], saved["train"]["epochs"], saved["model"]["options"]["width"]) == (7, 3, 8)
    assert load(folder).field(load(folder).grid[0], load(folder).stem(load(folder).grid[:1, None].float())).shape == (1, 8)
    before = (folder / "model.safetensors").read_bytes()
    again = run("train", *TINY, "--seed", "7", "--set", "epochs=3", "--set", "model_options.width=8", "--out", folder)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Give SIGINT its default effect: a test run in the background (``nohup make test &``) inherits that it is ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.posix
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_says_how_to_continue_and_resume_continues(tmp_path: Path) -> None:
    """SIGINT during a training gives status 130, one line and a checkpoint; --resume ends with the same weights, bit for bit."""
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


def test_options_override_the_file_and_the_file_overrides_the_preset(tmp_path: Path) -> None:
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
    """In an empty folder, all four data sets are missing."""
    result = run("data", "info", "--root", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.count("missing") == 4


def test_comma_separated_lists() -> None:
    assert console.numbers("0, 1,12") == [0, 1, 12]
    assert console.numbers("3,0-2,1") == [3, 0, 1, 2]
    assert console.words("a,, b ") == ["a", "b"]


@pytest.mark.parametrize("text", ["", "one", "1.5", "-1", "3-1", "1-", "-", "0,x"])
def test_a_wrong_list_of_numbers_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="whole numbers separated by commas"):
        console.numbers(text)


def test_without_typer_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import ltnode`` works without typer and rich; the command names them instead of showing a traceback."""
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
