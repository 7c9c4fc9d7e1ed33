"""The grid of the image experiments: its content in this repository, and the messages for invalid files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ltnode.cli import console
from ltnode.data import Augmentation, Dataset, Normalisation
from ltnode.errors import ConfigError, InputError
from paper.reproduce.edition.cells import edition_cells
from paper.reproduce.images.grid import Cell, load_grid, select

ROOT = Path(__file__).parents[2]
DATA = ("cifar10", "svhn", "fashion-mnist", "mnist")
MODELS = ("node", "uni-node", "lt-node", "alt-node", "sde-net", "node-gp")


@pytest.fixture(scope="module")
def grid() -> list[Cell]:
    return load_grid(ROOT / "paper" / "grid")


def test_the_grid_has_all_models_on_all_sets_at_the_paper_s_length(grid: list[Cell]) -> None:
    """Six models on four sets, preset paper, five seeds; epochs and milestones of the paper's table 'Training configurations'."""
    assert len(edition_cells(grid)) == 120
    assert {(c.data, c.model, c.seed) for c in edition_cells(grid)} == set(itertools.product(DATA, MODELS, range(5)))
    paper = {(c.data, c.model): c.config for c in grid if c.preset == "paper" and not c.variant and c.seed == 0}
    assert set(paper) == {(data, model) for data in DATA for model in MODELS}
    for (data, _), config in paper.items():
        expected = (300, (150, 225)) if data == "cifar10" else (90, (40, 70))
        assert (config.epochs, config.milestones) == expected
        assert (config.lr, config.batch_size, config.precision) == (0.1, 256, "bf16")


def test_the_grid_has_the_seeds_and_variants_that_the_comparison_needs(grid: list[Cell]) -> None:
    """At least three seeds for the users' question, all weightings, one cell in float32, and NODE at five end-times."""
    for data in ("cifar10", "svhn"):
        for model, preset in (
            ("node", "paper"), ("uni-node", "paper"), ("lt-node", "paper"), ("lt-node", "default"), ("alt-node", "default")
        ):  # fmt: skip
            seeds = [c.seed for c in grid if (c.data, c.model, c.preset, c.variant) == (data, model, preset, "")]
            assert seeds[:3] == [0, 1, 2]
    variants = {(c.data, c.model, c.variant): c for c in grid if c.variant}
    weighting = variants["cifar10", "lt-node", "softmax"]
    assert weighting.build().objective.weighting == "softmax"  # type: ignore[attr-defined]
    differences = weighting.config.differences(variants["cifar10", "lt-node", "normalised"].config)
    assert [text.partition(":")[0] for text in differences] == ["model_options"]
    assert variants["cifar10", "alt-node", "normalised"].build().objective.samples == 10  # type: ignore[attr-defined]
    full = variants["svhn", "node", "fp32"].config
    assert full.precision == "fp32"
    times = {c.config.model_options["end_time"]["t"] for c in grid if c.variant[:1] == "t" and c.variant[1:2].isdigit()}
    assert times == {0.25, 0.5, 2.0, 3.0}


def test_the_most_important_cells_come_first(grid: list[Cell]) -> None:
    """The order in which missing cells are run when time is short; other seeds and SDE-Net follow, NODE-GP is last."""
    first = [c.name for c in grid[:7]]
    assert first == [
        "cifar10-node-paper-seed0", "cifar10-uni-node-paper-seed0", "cifar10-lt-node-paper-seed0",
        "cifar10-lt-node-default-seed0", "cifar10-alt-node-paper-seed0", "cifar10-alt-node-default-seed0",
        "svhn-node-paper-seed0",
    ]  # fmt: skip
    models = [c.model for c in grid]
    later = {"sde-net": 1, "node-gp": 2}
    places = [later.get(model, 0) for model in models]
    assert places == sorted(places)
    assert {0, 1, 2} == set(places)


def test_cells_are_selected_by_name_and_seed(grid: list[Cell]) -> None:
    chosen = select(grid, ["cifar10"], ["lt-node"], ["paper"], ["standard"], [0, 4])
    assert [c.name for c in chosen] == ["cifar10-lt-node-paper-seed0", "cifar10-lt-node-paper-seed4"]
    assert chosen[1].config.seed == 4
    assert len(select(grid)) == len(grid)
    trial = select(grid, ["mnist"], ["node"], settings=["epochs=1"])[0]
    assert trial.name == "mnist-node-paper-seed0-trial"
    assert trial.config.epochs == 1
    with pytest.raises(InputError, match="Did you mean 'lt-node'"):
        select(grid, models=["ltnode"])
    with pytest.raises(InputError, match="unknown variant"):
        select(grid, variants=["fp64"])


@pytest.mark.parametrize(
    ("text", "seeds"), [("0", [0]), ("0,1", [0, 1]), ("0-4", [0, 1, 2, 3, 4]), ("0-2, 5", [0, 1, 2, 5]), ("1,0-1", [1, 0])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert console.numbers(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "0-", "1.5", "0-2-4"])
def test_what_is_no_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected whole numbers"):
        console.numbers(text)


GOOD = 'data = "mnist"\nmodel = "node"\n\n[[runs]]\npreset = "paper"\nseeds = [0]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("seeds", "seed"), "Did you mean 'seeds'"),
        (GOOD.replace('"mnist"', '"imagenet"'), "unknown data set"),
        (GOOD.replace('"node"', '"nod"'), "Did you mean 'node'"),
        (GOOD.replace('"node"', '"lt-node"'), "call it mnist-lt-node.toml"),
        (GOOD.replace('"paper"', '"papper"'), "Did you mean 'paper'"),
        (GOOD.replace("[0]", "[]"), "list of whole numbers"),
        (GOOD.replace("[0]", "[0, 0]"), "twice"),
        (GOOD + 'variant = "x"\n', "needs changes"),
        (GOOD + 'variant = "x"\nimages.crop = "none"\n', "images may hold"),
        (GOOD + 'images.augment = "none"\n', "needs a variant"),
        (GOOD + "train.lr = 0.2\n", "needs a variant"),
        (GOOD + 'variant = "A b"\ntrain.lr = 0.2\n', "variant must consist of"),
        (GOOD + 'variant = "x"\ntrain.lrr = 0.2\n', "Did you mean 'lr'"),
        (GOOD + "\n[train]\nepochs = 0\n", "an integer >= 1"),
        (GOOD.partition("[[")[0], "has no runs"),
        ("= 1", "cannot read"),
    ],
)
def test_a_wrong_grid_file_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mnist-node.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_grid(tmp_path)


def test_changes_of_the_images_are_made_to_the_data(grid: list[Cell]) -> None:
    """Without crops, or with pixels from 0 to 1; all other cells leave the data as they are."""
    data = Dataset.from_arrays(torch.zeros(4, 3, 8, 8).byte(), torch.arange(4), torch.zeros(4, 3, 8, 8).byte(), torch.arange(4))
    data = replace(data, augment=Augmentation(2), normalise=Normalisation((0.5,) * 3, (0.2,) * 3))
    found = {cell.variant: cell.changed(data) for cell in grid if cell.data == "svhn" and cell.model == "node"}
    assert found[""] is data
    assert found["no-crops"].augment is None
    assert found["no-crops"].normalise == data.normalise
    assert found["unit-range"].normalise == Normalisation((0.0,) * 3, (1.0,) * 3)
    assert found["unit-range"].augment == data.augment


def test_outside_of_a_clone_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runs from a clone"):
        load_grid(tmp_path)
