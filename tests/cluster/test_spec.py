"""Specifications of sweeps: what they mean, and messages for mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ltnode
from ltnode.cluster.data_source import Source
from ltnode.cluster.spec import Range, SweepSpec
from ltnode.errors import ConfigError, LTNodeError

OF_THE_ISSUE = """
model = "lt-node"
data = "synthetic"       # or a list; a name, a file or a folder
seeds = [0, 1]
[train]                  # fixed keys of the training configuration
epochs = 20
[search]                 # a list is a grid; { low, high, log } is a range
lr = [0.01, 0.003]
"""
RANGE = {"model": "lt-node", "data": "synthetic", "trials": 4, "search": {"lr": {"low": 0.001, "high": 0.1, "log": True}}}


def test_the_documented_specification_is_a_grid_over_the_configuration_of_train() -> None:
    """A trial has the configuration of ``ltnode train`` with the same settings, so that either gives the same model."""
    spec = SweepSpec.of(tomllib.loads(OF_THE_ISSUE))
    assert (spec.strategy, spec.n_points, spec.n_runs) == ("grid", 2, 4)
    expected = ltnode.train_preset("lt-node", "synthetic").replace(epochs=20, lr=0.003, seed=1)
    assert spec.config({"lr": 0.003}, "synthetic", 1) == expected


def test_ranges_and_nested_keys_are_read() -> None:
    search = {
        "lr": {"low": 0.001, "high": 0.1, "log": True},
        "role_lr": {"variational": [0.1, 0.2]},
        "epochs": {"low": 1, "high": 9},
    }
    spec = SweepSpec.of({**RANGE, "search": search})
    assert spec.search == {"lr": Range(0.001, 0.1, True), "role_lr.variational": (0.1, 0.2), "epochs": Range(1, 9)}
    assert spec.strategy == "bayesian"
    config = spec.config({"lr": 0.01, "role_lr.variational": 0.2, "epochs": 3}, "synthetic", 0)
    assert (config.lr, config.role_lr["variational"], config.epochs) == (0.01, 0.2, 3)


def test_a_specification_survives_its_record() -> None:
    spec = SweepSpec.of({**RANGE, "pruner": "median"})
    assert SweepSpec.of(spec.to_json()) == spec


def test_models_without_held_out_examples_get_some() -> None:
    """Selection needs them: SDE-Net's preset holds nothing out."""
    assert ltnode.train_preset("sde-net", "synthetic").validation_fraction == 0
    assert SweepSpec.of({"model": "sde-net", "data": "synthetic"}).config({}, "synthetic", 0).validation_fraction == 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modell": "x"}, "unknown key of a sweep 'modell'. Did you mean 'model'?"),
        ({"lr": 0.1}, r"belong to \[train\] or \[search\]"),
        ({"trials": None, "search": {"lrr": [1, 2]}}, "unknown configuration key 'lrr'"),
        ({"trials": None, "search": {"lr": [0.1, -1.0]}}, "lr must be a finite number >= 0, not -1.0"),
        ({"search": {"lr": [0.1, 0.1]}}, "a list of different values"),
        ({"search": {"lr": 0.1}}, "a list of different values"),
        ({"search": {"lr": {"low": 1.0, "high": 0.1}}}, "low < high"),
        ({"search": {"lr": {"low": 0.0, "high": 0.1, "log": True}}}, "low > 0 if log"),
        ({"search": {"lr": {"low": 0.1, "high": 0.2, "logg": True}}}, "Did you mean 'log'?"),
        ({"strategy": "grid", "trials": None}, "lr is a range"),
        ({"trials": None}, "needs trials"),
        ({"seeds": [0, 0]}, "a list of different integers"),
        ({"train": {"seed": 3}}, "seed is set at the top"),
        ({"train": {"lr": 0.1}}, r"in \[train\] and in \[search\]"),
        ({"train": {"validation_fraction": 0.0}}, "held-out log-likelihood"),
        ({"strategy": "bayes"}, "Did you mean 'bayesian'?"),
        ({"data": "no-such-set"}, "There is no file or folder of this name"),
        ({"table": {"target": "y"}}, r"\[table\] belongs to tables .*, and synthetic is none"),
        ({"table": {"taget": "y"}}, "Did you mean 'target'?"),
        ({"table": {"target": ["y"]}}, "target of .table. must be the name of a column"),
        ({"table": {"task": "regression"}}, "needs target, the column to predict"),
        ({"image_size": 32}, "image_size belongs to folders of images, and synthetic is none"),
        ({"image_size": 4}, "image_size must be an integer >= 8, not 4"),
    ],
)
def test_mistakes_are_explained(changes: dict[str, Any], words: str) -> None:
    table = {key: value for key, value in {**RANGE, **changes}.items() if value is not None}
    with pytest.raises(LTNodeError, match=words):
        SweepSpec.of(table)


def test_a_grid_of_millions_is_refused_before_it_is_built() -> None:
    """Forty values of four keys are 2,560,000 trainings."""
    search = {key: [0.001 * n for n in range(1, 41)] for key in ("lr", "weight_decay", "momentum", "decay")}
    with pytest.raises(ConfigError, match="at most 100,000 trainings, not 2,560,000"):
        SweepSpec.of({"model": "lt-node", "data": "synthetic", "search": search})


def test_a_specification_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("model = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        SweepSpec.read(tmp_path / "deep.toml")


def test_files_are_data_sets(tmp_path: Path, rng: np.random.Generator) -> None:
    """A .npz and a .csv file of the same numbers give the same training data; whole targets are labels."""
    x, y = rng.normal(size=(50, 2)), np.arange(50) % 3
    np.savez(tmp_path / "points.npz", x=x, y=y)
    lines = ["a,b,target", *(f"{a!r},{b!r},{label}" for (a, b), label in zip(x.tolist(), y.tolist(), strict=True))]
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n")
    config = ltnode.TrainConfig()
    one, other = (Source(str(tmp_path / f"points.{kind}")).load(config) for kind in ("npz", "csv"))
    assert one.task == other.task == "classification"
    assert one.checksums == other.checksums
    with pytest.raises(ConfigError, match="a sweep needs data"):
        SweepSpec.of({"model": "lt-node"})
