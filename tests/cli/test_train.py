"""``ltnode train``: the data sets that it offers, and the same result as ``ltnode.fit``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.cli.commands.train import DATA_SETS
from ltnode.trained import OperatingPoint

SETTINGS = {"epochs": 2, "validation_fraction": 0.5, "limit": 60, "device": "cpu"}


def test_every_offered_data_set_can_be_trained_on() -> None:
    """A name in the help text must not be refused when it is used."""
    shown = " ".join(CliRunner().invoke(make_app(), ["train", "--help"]).output.split())
    for name in DATA_SETS:
        assert name in shown
        ltnode.train_preset("lt-node", name)
        ltnode.build("lt-node", name, seed=0, width=4)
    assert "gap" not in DATA_SETS


@pytest.mark.parametrize("seeds", [False, True])
def test_the_command_and_the_function_write_the_same_folder(tmp_path: Path, seeds: bool) -> None:
    """Weights, configuration and operating point agree bit for bit, for one run and for concurrent runs."""
    words = ["train", "--model", "lt-node", "--data", "concentric", "--out", str(tmp_path / "command")]
    words += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(make_app(), [*words, *(("--seeds", "0-1") if seeds else ())])
    assert result.exit_code == 0, result.output
    data, config = ltnode.data.load("concentric"), ltnode.train_preset("lt-node", "concentric").replace(**SETTINGS)
    if seeds:
        ltnode.fit_seeds(lambda seed: ltnode.build("lt-node", data, seed=seed), data, config, (0, 1), tmp_path / "function")
    else:
        ltnode.fit(ltnode.build("lt-node", data, seed=0), data, config, tmp_path / "function")
    for suffix in ("-seed0", "-seed1") if seeds else ("",):
        one, other = (tmp_path / f"{name}{suffix}" for name in ("command", "function"))
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        assert json.loads((one / "config.json").read_text()) == json.loads((other / "config.json").read_text())
        assert OperatingPoint.read(one) == OperatingPoint.read(other) is not None
