"""The models of the zoo reproduce their recorded numbers, and their folders are those of the records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ltnode.data import load as load_data
from ltnode.errors import DataError
from ltnode.models import Ensemble
from ltnode.training import Run, TrainConfig, load
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.cells import Places
from paper.reproduce.images.evaluation import small_part
from paper.reproduce.images.grid import DATA_SETS, Cell, load_grid, select
from paper.reproduce.images.results import read_result
from paper.reproduce.images.zoo import MODELS, DefaultEntry, PaperEntry, add_runs, read_zoo, zoo_name

ROOT = Path(__file__).parents[2]
PAPER = PaperFolder(ROOT / "paper")


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["node-mnist", "lt-node-cifar10", "ensemble-cifar10", "lt-node-mnist-paper"])
def test_a_zoo_model_gives_its_recorded_numbers_again(name: str, real_data_root: Path) -> None:
    """First 500 test images on the CPU in float32. Another CPU rounds differently, so one image may change its class."""
    folder = ROOT / "zoo" / name
    content = json.loads((folder / "config.json").read_text())
    config = TrainConfig.from_json(content["train"])
    assert config.data is not None
    data = load_data(config.data, real_data_root)
    results = json.loads((folder / "results.json").read_text())
    found = small_part(Run(load(folder), config, folder, results=results), data)
    if config.preset == "paper":
        cell = f"{config.data}-{config.model}-{config.preset}-seed{config.seed}"
        recorded = read_result(ROOT / "paper" / "results" / f"images-{cell}.json").content["small_part"]
    else:
        recorded = json.loads((ROOT / "benchmarks" / "results" / "zoo.json").read_text())["models"][name]
    assert found["examples"] == recorded["examples"] == 500
    assert found["error"] == pytest.approx(recorded["error"], abs=1.01 / 500)
    assert found["log_likelihood"] == pytest.approx(recorded["log_likelihood"], rel=1e-3)


@pytest.fixture(scope="module")
def grid() -> list[Cell]:
    return load_grid(ROOT / "paper" / "grid")


def test_names_of_the_zoo(grid: list[Cell]) -> None:
    """The short names belong to the default recipe, whose runs are no cells of the grid."""
    names = {cell.name: zoo_name(cell) for cell in select(grid, ["cifar10"], presets=["paper"], variants=["standard"], seeds=[0])}
    assert names["cifar10-lt-node-paper-seed0"] == "lt-node-cifar10-paper"
    assert names["cifar10-node-paper-seed0"] == "node-cifar10-paper"
    held = {entry.folder.name for entry in read_zoo(ROOT / "zoo", grid, PAPER.records)}
    recipe = {f"{model}-{data}" for model in MODELS for data in DATA_SETS}
    assert held == recipe | {"ensemble-cifar10", "lt-node-cifar10-paper", "lt-node-mnist-paper"}


def test_finished_runs_of_seed_0_are_added(tmp_path: Path, grid: list[Cell]) -> None:
    """A copy of a zoo run under the name of its cell is added; unfinished runs, other seeds, presets and baselines are not."""
    runs, zoo = tmp_path / "runs", tmp_path / "zoo"
    cells = select(grid, ["mnist"], ["lt-node", "uni-node", "sde-net"], seeds=[0, 1])
    for cell in cells:
        source = ROOT / "zoo" / "lt-node-mnist-paper"
        target = runs / cell.name
        target.mkdir(parents=True)
        for name in ("config.json", "results.json", "metrics.jsonl", "model.safetensors"):
            if name != "model.safetensors" or cell.model != "uni-node":
                (target / name).write_bytes((source / name).read_bytes())
    added = add_runs(zoo, cells, Places(runs, tmp_path / "results"))
    assert [path.name for path in added] == ["lt-node-mnist-paper"]
    assert add_runs(zoo, cells, Places(runs, tmp_path / "results")) == []
    records = replace(PAPER.records, paper=tmp_path / "results")
    (entry,) = read_zoo(zoo, grid, records)
    assert isinstance(entry, PaperEntry)
    assert (entry.cell.name, entry.result) == ("mnist-lt-node-paper-seed0", None)
    (zoo / "lt-node-mnist-paper").rename(zoo / "another-name")
    with pytest.raises(DataError, match="no run of the grid"):
        read_zoo(zoo, grid, records)


def test_a_model_of_the_default_recipe_needs_the_record_of_its_weights(tmp_path: Path, grid: list[Cell]) -> None:
    """A card must not show the numbers of another run: neither of another folder nor of other weights."""
    source, target = ROOT / "zoo" / "node-mnist", tmp_path / "node-mnist"
    target.mkdir()
    for name in ("config.json", "operating_point.json"):
        (target / name).write_bytes((source / name).read_bytes())
    (entry,) = read_zoo(tmp_path, grid, PAPER.records)
    assert isinstance(entry, DefaultEntry)
    assert (entry.row["name"], entry.small_part["examples"]) == ("mnist-node-seed0", 500)
    target.rename(tmp_path / "another-name")
    with pytest.raises(DataError, match="must hold the run mnist-node-seed0 of .* and be called node-mnist"):
        read_zoo(tmp_path, grid, PAPER.records)
    (tmp_path / "another-name").rename(target)
    point = json.loads((target / "operating_point.json").read_text())
    (target / "operating_point.json").write_text(json.dumps({**point, "weights": "0"}))
    with pytest.raises(DataError, match="no numbers of the weights"):
        read_zoo(tmp_path, grid, PAPER.records)


def test_the_ensemble_consists_of_the_measured_runs() -> None:
    """Its networks have the weights of the runs whose averaged predictions the record has; the first is in the zoo itself."""
    ensemble, alone = load(ROOT / "zoo" / "ensemble-cifar10"), load(ROOT / "zoo" / "node-cifar10")
    assert isinstance(ensemble, Ensemble)
    for a, b in zip(ensemble.networks[0].parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)
    seeds = [member["seed"] for member in json.loads((ROOT / "zoo/ensemble-cifar10/results.json").read_text())["members"]]
    row = json.loads(PAPER.records.default.read_text())["models"]["ensemble-cifar10"]["test_set"]
    assert seeds == row["members"] == [0, 1, 2, 3, 4]
