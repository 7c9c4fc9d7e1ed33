"""What a newcomer mistypes in the five-minute start is answered with the remedy: one mistake per command or call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from repository import ROOT
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.errors import CheckpointError, InputError

RUN = ROOT / "tests" / "fixtures" / "run-folders" / "v0.2" / "familiar-vectors"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a run, a table and an empty place of models."""
    shutil.copytree(RUN, tmp_path / "runs" / "flats")
    (tmp_path / "flats.csv").write_text("size,city,price\n" + "".join(f"{n},Bern,{2 * n}\n" for n in range(40)))
    (tmp_path / "short.csv").write_text("size\n80\n")
    (tmp_path / "rows.csv").write_text("0.1,0.2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LTNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("deom --out demo", "Did you mean 'demo'?"),
        ("demo --out flats.csv", "flats.csv is a file; name a folder"),
        ("train --data flat.csv --target price --out runs/x", "flat.csv does not exist; the folder has flats.csv"),
        ("train --data flats.csv --target prize --out runs/x", "Did you mean 'price'?"),
        ("train --data flats.csv --targt price --out runs/x", "--target"),
        ("train --data short.csv --target price --out runs/x", "the others are missing, or are not separated by commas"),
        ("evaluate runs/flts", "did you mean runs/flats?"),
        ("predict runs/flts rows.csv", "did you mean runs/flats?"),
        ("predict runs/flats rows.csv --out none/p.json", "none is not a folder; make it"),
        ("predict runs/flats rows.csv --out p.xlsx", "--out must end in .json or .csv"),
        ("predict runs/flats rows.csv --explain flaged", "'flagged'"),
        ("predict lt-node-cifar1O rows.csv", "Did you mean 'lt-node-cifar10'?"),
    ],
)
def test_a_command_says_what_to_do(words: str, answer: str, folder: Path):
    result = CliRunner().invoke(make_app(), words.split())
    assert result.exit_code == 2
    assert answer in " ".join(result.output.split())


def test_calls_say_what_to_do(folder: Path):
    with pytest.raises(AttributeError, match="Did you mean 'LTNodeRegressor'"):
        _ = ltnode.LTNodeRegresor
    with pytest.raises(CheckpointError, match=r"did you mean runs/flats\?"):
        ltnode.load("runs/flts")
    with pytest.raises(InputError, match=r"ltnode.data.load\('concentric'\)"):
        ltnode.fit(ltnode.build("lt-node", "concentric"), "concentric")
    with pytest.raises(InputError, match="Did you mean 'lt-node'"):
        ltnode.build("ltnode", "concentric")
