"""``ltnode evaluate`` and ``ltnode report`` on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ltnode
from ltnode.cli.app import make_app
from ltnode.evaluation import read_rows

APP = make_app()


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words], prog_name="ltnode")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    data = ltnode.data.load("synthetic", limit=40)
    folder = tmp_path_factory.mktemp("run") / "x"
    config = ltnode.TrainConfig(
        model="lt-node", data="synthetic", preset="default", epochs=10, batch_size=None, limit=40, log_every=5
    )
    ltnode.fit(ltnode.build("lt-node", data, seed=0, width=6), data, config, out=folder)
    return folder


def test_from_a_run_to_a_page(trained, tmp_path):
    """Both commands, one after the other; the name of the data set is read from the run."""
    folder = tmp_path / "x"
    shutil.copytree(trained, folder)
    done = run("evaluate", folder, "--draws", "0", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "rmse" in done.output and "evaluation.json" in done.output
    assert {row.protocol for row in read_rows(folder / "evaluation.json")} == {"regression"}
    done = run("report", folder, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    assert "file://" in done.output
    text = (tmp_path / "report" / "index.html").read_text()
    assert "Figure 2" in text and "Figure 6" in text
    assert "| 2.42 |" in (tmp_path / "report" / "tables" / "regression.md").read_text()  # in a clone, the paper's value is shown


@pytest.mark.no_typecheck
def test_wrong_requests_end_with_one_line(trained, tmp_path):
    for words, message in (
        (("evaluate", tmp_path / "none"), "is not a folder"),
        (("evaluate", trained, "--protocols", "rotation"), "is for classification"),
        (("evaluate", trained, "--protocols", "regresion"), "Did you mean 'regression'"),
        (("evaluate", trained, "--draw", "quantil"), "Did you mean 'quantile'"),
        (("report", trained), "ltnode evaluate"),
    ):
        done = run(*words)
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())
        assert "Traceback" not in done.output
    assert not (trained / "evaluation.json").exists()


def test_evaluating_again_does_nothing_new_and_other_options_are_refused(trained, tmp_path):
    out = tmp_path / "e.json"
    words = ("evaluate", trained, "--out", out, "--draws", "0", "--device", "cpu")
    assert run(*words).exit_code == 0
    before = out.read_bytes()
    assert run(*words).exit_code == 0
    assert out.read_bytes() == before
    done = run(*words, "--samples", "3")
    assert done.exit_code == 2 and "--overwrite" in done.output
    assert run(*words, "--samples", "3", "--overwrite").exit_code == 0
    assert out.read_bytes() != before
