"""The progress bar: on a terminal with speed and loss, and silent elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

import ltnode
from ltnode.progress import progress_bar
from training.tiny import tiny_config, tiny_data, tiny_model


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_fit_shows_its_progress_on_a_terminal(terminal: Terminal):
    """The last state of the bar has all steps, the speed and the last loss."""
    run = ltnode.fit(tiny_model("node"), tiny_data(), tiny_config())
    shown = terminal.getvalue()
    assert "training" in shown and "24/24" in shown and "steps/s" in shown
    assert f"loss {run.history[-1]['loss']:.4g}" in shown


def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str]):
    ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(epochs=1))
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_counts_add_up_and_a_resumed_run_starts_where_it_stopped(terminal: Terminal):
    """Relative reports add up; the first absolute report may be large without counting towards the speed."""
    with progress_bar("clean", 10) as advance:
        advance(4)
        advance(6)
    assert "10/10" in terminal.getvalue()
    with progress_bar("training", 1_000_000, "steps") as report:
        report.completed(999_990)
        report.completed(1_000_000, "loss 0.5")
    assert "1000000/1000000" in terminal.getvalue() and "loss 0.5" in terminal.getvalue()


def test_processes_that_do_not_write_show_nothing(terminal: Terminal):
    with progress_bar("training", 10, "steps", shown=False) as report:
        report.completed(10, "loss 1")
    assert terminal.getvalue() == ""
