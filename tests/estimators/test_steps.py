"""The steps of the estimators' trainings give what eager steps give, and their record is shown as it is."""

from __future__ import annotations

import json

import pytest
import torch
from repository import load_script

import ltnode
from ltnode.data import Dataset, Split
from ltnode.estimators.epochs import Patience, TableTraining
from ltnode.estimators.steps import EagerSteps, StackedSteps, table_steps
from ltnode.models import Ensemble
from ltnode.training.batches import TrainingData
from ltnode.training.status import TrainingError


def training(accelerate: str, weighted: bool, members: int = 1, averaging: float | None = None) -> TableTraining:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 4, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(90, generator=generator, dtype=torch.float64)
    spec, options = ltnode.InputSpec((4,), "regression"), {"seed": 0, "noise": "varying"}
    if members == 1:
        model = ltnode.build("lt-node", spec, **options).double()
    else:  # alone, every network would choose steps for itself; with this tolerance, they make no difference
        precise = {"rtol": 1e-6, "atol": 1e-6}
        model = ltnode.build("ensemble", spec, of="lt-node", members=members, solver=precise, **options).double()
    config = ltnode.TrainConfig(
        epochs=4, batch_size=16, lr=0.01, schedule="cosine", averaging=averaging, device="cpu", accelerate=accelerate
    )
    weights = 2 * torch.rand(90, generator=generator, dtype=torch.float64) if weighted else None
    assert isinstance(model, ltnode.LatentTimeODE | Ensemble)
    return TableTraining(model, Split(x, y), config, weights=weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_stacked_and_eager_trainings_agree(weighted):
    """24 steps of Adam at a rate of 0.01: rounding to float32 changes a weight by less than a hundredth of a step."""
    courses, weights = [], []
    for accelerate in ("auto", "off"):
        trained = training(accelerate, weighted)
        courses.append(trained.run(Patience(100, 0.0)).losses)
        weights.append(torch.cat([p.detach().flatten() for p in trained.model.parameters()]))
    assert courses[0] == pytest.approx(courses[1], rel=1e-4)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_stacked_and_eager_trainings_of_several_networks_agree(weighted):
    """As above, with averages over about 10 steps; a weight changes by less than a tenth of a step of Adam.

    The loss is that of the average network, and the networks differ.
    """
    courses, weights = [], []
    for accelerate in ("auto", "off"):
        trained = training(accelerate, weighted, members=3, averaging=0.9)
        courses.append(trained.run(Patience(100, 0.0)).losses)
        weights.append([torch.cat([p.detach().flatten() for p in network.parameters()]) for network in trained.model.networks])
    assert courses[0] == pytest.approx(courses[1], rel=1e-4)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-3)
    assert (weights[0][0] - weights[0][1]).abs().max() > 0.1


def test_averages_are_lent_to_the_model_and_given_back():
    """Inside of the block the model has the averages of its weights, and outside of it its own; with both kinds of steps."""
    for accelerate in ("auto", "off"):
        trained = training(accelerate, False, members=2, averaging=0.5)
        trained.run_epoch()
        own = [p.detach().clone() for p in trained.model.parameters()]
        with trained._steps.averaged():
            lent = [p.detach().clone() for p in trained.model.parameters()]
        after = [p.detach() for p in trained.model.parameters()]
        torch.testing.assert_close(after, own, rtol=0, atol=1e-7)
        assert max(float((a - b).abs().max()) for a, b in zip(lent, own, strict=True)) > 1e-3


def test_what_cannot_be_stacked_trains_eagerly():
    x, y = torch.randn(20, 2, dtype=torch.float64), torch.arange(20) % 2
    kinds = {"lt-node": StackedSteps, "uni-node": StackedSteps, "node": StackedSteps, "alt-node": EagerSteps}
    for name, kind in kinds.items():
        model = ltnode.build(name, ltnode.InputSpec((2,), "classification", 2), seed=0).double()
        assert isinstance(model, ltnode.LatentTimeODE)
        split, config = Split(x, y), ltnode.TrainConfig(device="cpu")
        data = TrainingData.of(Dataset("table", "classification", split, split, 2), model, config, torch.device("cpu"))
        assert type(table_steps(model, data, None)) is kind


@pytest.mark.filterwarnings("error")
def test_a_training_that_diverges_says_so():
    """Infinite targets make the loss infinite; the error names the step."""
    trained = training("auto", False)
    trained._steps._y[:] = float("inf")  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="step 0"):
        trained.run_epoch()


def test_the_page_shows_the_record_and_steps_cost_at_most_five_of_an_mlp():
    """Rendering the record into the page leaves the page unchanged; every recorded ratio of medians is at most 5."""
    script = load_script("benchmarks/table_steps.py")
    record = json.loads(script.RECORD.read_text(encoding="utf-8"))
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.render(record, page) == page and page.count(script.BEGIN) == 1
    assert {"ltnode", "git_commit", "scikit_learn", "torch", "device"} <= set(record["provenance"])
    assert len(record["steps"]) == len(script.TASKS) * len(script.ROWS)
    assert all(0 < row["ratio"] <= 5 < row["reference_ratio"] for row in record["steps"])
