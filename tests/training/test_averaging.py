"""Trainings with averaged weights: what the model gets at the end, and that nothing else of the training changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ltnode
from ltnode.models.averaging import WeightAverage
from ltnode.training.batches import TrainingData
from ltnode.training.engine import Job, fit_together
from ltnode.training.finishing import averaged_weights, refit_batch_norm
from ltnode.training.step import make_averages, make_optimizers
from training.child import start_workers
from training.test_distributed import FIXED, assert_close_runs, wait
from training.tiny import Stop, TwoPhaseModel, assert_same_run, stop_at, tiny_config, tiny_data, tiny_model, without_timing

MODELS = {"two-phase": TwoPhaseModel, "lt-node": tiny_model, "alt-node": lambda: tiny_model("alt-node")}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_gets_the_average_of_the_weights_of_all_steps(name: str, optimizer: str):
    """Reference: the reference average of the weights at every log line of the same training without averaging (1e-5).

    Clamping after a step never happens in so short a training, so that the weights at a line are those that enter the average.
    """
    config = tiny_config(epochs=3, log_every=1, optimizer=optimizer)
    plain = MODELS[name]()
    expected = WeightAverage(plain.parameters(), 0.9)
    run = ltnode.fit(plain, tiny_data(), config, on_log=lambda line: expected.update())
    averaged = MODELS[name]()
    other = ltnode.fit(averaged, tiny_data(), config.replace(averaging=0.9))
    assert int(expected.count) == 9
    for value, p in zip(expected.averaged(), averaged.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-5, atol=1e-6)
    assert [line["loss"] for line in run.history] == [line["loss"] for line in other.history]


@pytest.mark.parametrize("name", MODELS)
def test_validation_sees_the_averaged_weights_and_leaves_no_trace(name: str):
    """With a decay of almost 1 the average of the first steps is their mean, which differs from the last weights.

    The last validation is that of the final model; validating every step or never gives the same weights, bit for bit.
    """
    weights, runs = [], []
    for log_every in (1, 100):
        model = MODELS[name]()
        config = tiny_config(epochs=4, averaging=0.99, log_every=log_every, validation_fraction=0.25)
        runs.append(ltnode.fit(model, tiny_data(), config))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    _, held_out = tiny_data().with_validation(0.25, seed=3)
    rmse = float((runs[0].model.predict(tiny_data().prepare(held_out.x)).mean - held_out.y).square().mean().sqrt())
    # The model predicts on the fitted prediction grid, whose tolerance is 1e-3 to 1e-2, and in training on the initial one.
    assert runs[0].history[-1]["validation"]["rmse"] == pytest.approx(rmse, abs=1e-2)


@pytest.mark.parametrize(("name", "optimizer"), [("two-phase", "sgd"), ("lt-node", "adam"), ("alt-node", "sgd")])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path, name: str, optimizer: str):
    """Crashes before the first checkpoint, between checkpoints and at the last step; weights and logs agree bit for bit."""
    config = tiny_config(optimizer=optimizer, averaging=0.95, validation_fraction=0.1, calibration_fraction=0.1)
    ltnode.fit(MODELS[name](), tiny_data(), config, out=tmp_path / "whole")
    for step in (1, 9, 16):
        with pytest.raises(Stop):
            ltnode.fit(MODELS[name](), tiny_data(), config, out=tmp_path / "parts", resume=True, on_log=stop_at(step))
    ltnode.fit(MODELS[name](), tiny_data(), config, out=tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def paper_model() -> ltnode.Model:
    """The paper's 1-D network, which has BatchNorm in its field."""
    return ltnode.build("lt-node", "synthetic", "paper", seed=0)


def test_batch_norm_is_recomputed_with_the_averaged_weights():
    """The statistics at the end are those of passes with the averaged weights, which another refit reproduces (1e-6)."""
    config = tiny_config(epochs=2, averaging=0.9, lr=0.02)
    model = paper_model()
    ltnode.fit(model, tiny_data(), config)
    statistics = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    assert statistics
    refit_batch_norm(model, TrainingData.of(tiny_data(), model, config, torch.device("cpu")))
    assert not model.training
    for name, value in statistics.items():
        torch.testing.assert_close(model.get_buffer(name), value, rtol=1e-6, atol=1e-6)
    plain = paper_model()
    ltnode.fit(plain, tiny_data(), config.replace(averaging=None))
    assert not all(torch.equal(plain.get_buffer(name), value) for name, value in statistics.items())


def test_a_model_with_batch_norm_is_the_same_after_using_its_averaged_weights():
    """Weights, statistics, training grid, random state, momenta and mode are restored bit for bit."""
    model, config = paper_model().train(), tiny_config(averaging=0.5)
    data = TrainingData.of(tiny_data(), model, config, torch.device("cpu"))
    averages = make_averages(make_optimizers(model, config), config)
    averages["main"].update()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    solver, random = model.solver_state(), torch.get_rng_state()
    with averaged_weights(model, averages, data):
        assert not all(torch.equal(value, before[name]) for name, value in model.named_buffers() if "running" in name)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.solver_state() == solver and torch.equal(torch.get_rng_state(), random) and model.training


def test_concurrent_trainings_equal_single_ones():
    """Two trainings that take turns, one with and one without averaging, end as they would alone, bit for bit."""
    configs = [tiny_config(epochs=3, averaging=0.9, seed=1, validation_fraction=0.2), tiny_config(epochs=3, seed=2)]
    together = fit_together([Job(TwoPhaseModel(), tiny_data(), config) for config in configs])
    for config, run in zip(configs, together, strict=True):
        alone = ltnode.fit(TwoPhaseModel(), tiny_data(), config)
        assert without_timing(alone.history) == without_timing(run.history)
        for a, b in zip(alone.model.state_dict().values(), run.model.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_two_processes_have_the_averages_of_one(tmp_path: Path):
    """On fixed solver steps only rounding differs (1e-6)."""
    changes: dict[str, Any] = {"batch_size": 11, "epochs": 4, "averaging": 0.9, "calibration_fraction": 0.1}
    ltnode.fit(tiny_model(**FIXED), tiny_data(), tiny_config(**changes), out=tmp_path / "one")
    wait(start_workers(tmp_path / "two", 2, changes=changes, options=FIXED))
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-6)
