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
from ltnode.training.batches import TrainingData
from ltnode.training.status import TrainingError


def training(accelerate: str, weighted: bool) -> TableTraining:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 4, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(90, generator=generator, dtype=torch.float64)
    model = ltnode.build("lt-node", ltnode.InputSpec((4,), "regression"), seed=0, noise="varying").double()
    config = ltnode.TrainConfig(epochs=4, batch_size=16, lr=0.01, schedule="cosine", device="cpu", accelerate=accelerate)
    weights = 2 * torch.rand(90, generator=generator, dtype=torch.float64) if weighted else None
    assert isinstance(model, ltnode.LatentTimeODE)
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
