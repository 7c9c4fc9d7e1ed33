"""The progress bar: on a terminal with speed and loss, and silent elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
from training.tiny import tiny_config, tiny_data, tiny_model

import ltnode
from ltnode.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """What was written, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest replaces sys.stderr between the fixtures and the test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_fit_shows_its_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    """The last state of the bar has all steps, the speed and the last loss."""
    terminal = use_terminal(monkeypatch)
    run = ltnode.fit(tiny_model("node"), tiny_data(), tiny_config())
    shown = terminal.text()
    assert "training" in shown and "24/24" in shown and "steps/s" in shown
    assert f"loss {run.history[-1]['loss']:.4g}" in shown


def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str]):
    ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(epochs=1))
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_counts_add_up_and_a_resumed_run_starts_where_it_stopped(monkeypatch: pytest.MonkeyPatch):
    """Relative reports add up; the first absolute report may be large without counting towards the speed."""
    terminal = use_terminal(monkeypatch)
    with progress_bar("clean", 10) as advance:
        advance(4)
        advance(6)
    assert "10/10" in terminal.text()
    with progress_bar("training", 1_000_000, "steps") as report:
        report.completed(999_990)
        report.completed(1_000_000, "loss 0.5")
    assert "1000000/1000000" in terminal.text() and "loss 0.5" in terminal.text()


def test_processes_that_do_not_write_show_nothing(monkeypatch: pytest.MonkeyPatch):
    terminal = use_terminal(monkeypatch)
    with progress_bar("training", 10, "steps", shown=False) as report:
        report.completed(10, "loss 1")
    assert terminal.text() == ""
