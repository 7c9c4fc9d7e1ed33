"""Validation while training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ltnode.models.execution import Execution, using
from ltnode.training.batches import TrainingData
from ltnode.training.validation import validate
from training.tiny import tiny_config, tiny_data, tiny_model


class Faster(Execution):
    """Stands for graphs and prepared fields, of which a resumed training may have others."""

    def predict(self, model: Any, *args: Any) -> None:
        pytest.fail("the validation predicted in a graph")

    def prediction_field(self, field: Any, h: Any) -> Any:
        pytest.fail("the validation replaced the field")


@pytest.mark.parametrize("name", ["node", "lt-node", "alt-node"])
def test_validation_runs_the_layers_as_they_are_written(name: str):
    """Whatever execution is installed, so that a resumed training sees the numbers of an uninterrupted one."""
    model = tiny_model(name)
    data = TrainingData.of(tiny_data(), model, tiny_config(validation_fraction=0.25), torch.device("cpu"))
    plain = validate(model, data)
    with using(Faster()):
        assert validate(model, data) == plain
        with pytest.raises(pytest.fail.Exception, match="graph"):
            model.predict(data.evaluation_inputs(data.train)[0])
