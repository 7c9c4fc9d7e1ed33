"""The models of the zoo reproduce their recorded numbers, and finished runs are added under the right name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ltnode.data import load as load_data
from ltnode.errors import DataError
from ltnode.training import Run, TrainConfig, load
from paper.reproduce.images.cells import Places
from paper.reproduce.images.evaluation import small_part
from paper.reproduce.images.grid import Cell, load_grid, select
from paper.reproduce.images.results import read_result
from paper.reproduce.images.zoo import add_runs, read_zoo, zoo_name

ROOT = Path(__file__).parents[2]


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["node-mnist", "lt-node-cifar10"])
def test_a_zoo_model_gives_its_recorded_numbers_again(name: str, real_data_root: Path) -> None:
    """First 500 test images on the CPU in float32. Another CPU rounds differently, so one image may change its class."""
    folder = ROOT / "zoo" / name
    content = json.loads((folder / "config.json").read_text())
    config = TrainConfig.from_json(content["train"])
    assert config.data is not None
    data = load_data(config.data, real_data_root)
    results = json.loads((folder / "results.json").read_text())
    found = small_part(Run(load(folder), config, folder, results=results), data)
    cell = f"{config.data}-{config.model}-{config.preset}-seed{config.seed}"
    recorded = read_result(ROOT / "paper" / "results" / f"images-{cell}.json").content["small_part"]
    assert found["examples"] == recorded["examples"] == 500
    assert found["error"] == pytest.approx(recorded["error"], abs=1.01 / 500)
    assert found["log_likelihood"] == pytest.approx(recorded["log_likelihood"], rel=1e-3)


@pytest.fixture(scope="module")
def grid() -> list[Cell]:
    return load_grid(ROOT / "paper" / "grid")


def test_names_of_the_zoo(grid: list[Cell]) -> None:
    """If a model has two presets, the default one has the short name."""
    names = {cell.name: zoo_name(cell) for cell in select(grid, ["cifar10"], variants=["standard"], seeds=[0])}
    assert names["cifar10-lt-node-default-seed0"] == "lt-node-cifar10"
    assert names["cifar10-lt-node-paper-seed0"] == "lt-node-cifar10-paper"
    assert names["cifar10-node-paper-seed0"] == "node-cifar10"


def test_finished_runs_of_seed_0_are_added(tmp_path: Path, grid: list[Cell]) -> None:
    """A copy of a zoo run under the name of its cell is added; unfinished runs, other seeds and baselines are not."""
    runs, zoo = tmp_path / "runs", tmp_path / "zoo"
    cells = select(grid, ["mnist"], ["node", "uni-node", "sde-net"], seeds=[0, 1])
    for cell in cells:
        source = ROOT / "zoo" / "node-mnist"
        target = runs / cell.name
        target.mkdir(parents=True)
        for name in ("config.json", "results.json", "metrics.jsonl", "model.safetensors"):
            if name != "model.safetensors" or cell.model != "uni-node":
                (target / name).write_bytes((source / name).read_bytes())
    added = add_runs(zoo, cells, Places(runs, tmp_path / "results"))
    assert [path.name for path in added] == ["node-mnist"]
    assert add_runs(zoo, cells, Places(runs, tmp_path / "results")) == []
    entries = read_zoo(zoo, grid, tmp_path / "results")
    assert [(entry.cell.name, entry.result) for entry in entries] == [("mnist-node-paper-seed0", None)]
    (zoo / "node-mnist").rename(zoo / "another-name")
    with pytest.raises(DataError, match="no run of the grid"):
        read_zoo(zoo, grid, tmp_path / "results")
