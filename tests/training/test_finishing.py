"""The end of a training: what is fitted, on which part of the data, in which order and in which mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ltnode
from ltnode.data import gap_data
from ltnode.data.parts import split_parts
from ltnode.training.batches import TrainingData
from ltnode.training.finishing import Examples, fit_uncertainty, fitting_examples
from training.tiny import TwoPhaseModel, tiny_config, tiny_model

DATA = gap_data(120)


class Recording(TwoPhaseModel):
    """Records what it is given at the end of a training."""

    has_path = True

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, Any] = {}

    def _record(self, name: str, *tensors: Tensor | None) -> None:
        assert not self.training and not torch.is_grad_enabled()
        weights = [p.detach().clone() for p in self.parameters()]
        self.given[name] = (*(None if t is None else t.clone() for t in tensors), weights)

    def fit_familiarity(self, x: Tensor, y: Tensor | None = None) -> None:
        self._record("familiarity", x, y)

    def fit_widening(self, x: Tensor, y: Tensor) -> None:
        self._record("widening", x, y)

    def calibrate_familiarity(self, x: Tensor) -> None:
        self._record("calibration", x)


def rows(x: Tensor) -> set[float]:
    return set(x.flatten().tolist())


def test_every_step_uses_its_own_part_with_the_final_weights():
    """Three disjoint parts: the density sees what was trained on, widening the validation part, ranks the calibration part."""
    model = Recording()
    config = tiny_config(validation_fraction=0.1, calibration_fraction=0.2, split_seed=7, averaging=0.9, epochs=2)
    ltnode.fit(model, DATA, config)
    assert list(model.given) == ["familiarity", "widening", "calibration"]
    parts = split_parts(120, 0.1, 0.2, 7)
    inputs = DATA.prepare(DATA.train.x)
    for name, positions in (("familiarity", parts.fit), ("widening", parts.validation), ("calibration", parts.calibration)):
        assert torch.equal(model.given[name][0], inputs[positions])
        assert all(torch.equal(a, b) for a, b in zip(model.given[name][-1], model.parameters(), strict=True))
    assert torch.equal(model.given["widening"][1], DATA.train.y[parts.validation])
    assert not rows(inputs[parts.fit]) & rows(inputs[parts.calibration])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, ["familiarity"]), ({"calibration_fraction": 0.2}, ["familiarity", "calibration"])],
)
def test_parts_that_were_not_held_out_are_not_fitted_on(changes: dict[str, float], expected: list[str]):
    model = Recording()
    ltnode.fit(model, DATA, tiny_config(epochs=1, **changes))
    assert list(model.given) == expected


def test_the_density_is_fitted_on_a_random_choice_of_large_sets():
    """The first examples of a sorted set would be of one class; the choice depends on the seed alone."""
    data = [TrainingData.of(DATA, tiny_model(), tiny_config(seed=seed), torch.device("cpu")) for seed in (0, 0, 1)]
    chosen = [fitting_examples(entry, 30) for entry in data]
    assert all(len(examples.x) == len(examples.y) == 30 for examples in chosen)
    assert torch.equal(chosen[0].x, chosen[1].x) and not torch.equal(chosen[0].x, chosen[2].x)
    assert not torch.equal(chosen[0].x, DATA.prepare(DATA.train.x[:30]))
    assert len(fitting_examples(data[0]).x) == 120


def test_own_loops_can_end_in_the_same_way():
    """The mode of the model is restored; models without a path have nothing to fit."""
    model, x = Recording().train(), DATA.prepare(DATA.train.x)
    fit_uncertainty(model, Examples(x[:50], DATA.train.y[:50]), calibrate=Examples(x[50:], DATA.train.y[50:]))
    assert model.training and list(model.given) == ["familiarity", "calibration"]
    assert not TwoPhaseModel().has_familiarity


def test_a_run_records_sizes_and_checksums_of_its_parts(tmp_path):
    config = tiny_config(epochs=1, limit=100, validation_fraction=0.1, calibration_fraction=0.2, split_seed=7)
    run = ltnode.fit(TwoPhaseModel(), DATA, config, out=tmp_path / "run")
    record = run.results["provenance"]["data"]
    parts = split_parts(100, 0.1, 0.2, 7)
    assert (record["n_train"], record["n_validation"], record["n_calibration"]) == (70, 10, 20)
    assert {key: record[key] for key in parts.checksums()} == parts.checksums()
    other = ltnode.fit(TwoPhaseModel(), DATA, config.replace(seed=99)).results["provenance"]["data"]
    assert all(other[key] == record[key] for key in parts.checksums())  # the seed of the training changes nothing
    plain = ltnode.fit(TwoPhaseModel(), DATA, tiny_config(epochs=1)).results["provenance"]["data"]
    assert plain["n_calibration"] == 0 and plain["calibration_indices"] is None
