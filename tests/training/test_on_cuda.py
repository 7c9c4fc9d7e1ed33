"""Training on CUDA as users start it: resumed captured steps, and concurrent runs on separate streams.

On a GPU two runs of the same training do not agree bit for bit: sums are reordered, and a resumed run may search its grid a few
steps earlier or later, which changes a gradient by up to the tolerance of the solver (1e-2). The references are runs of the same
path; the change of the weights in 24 steps may differ by a tenth, whereas another seed differs by more than a half.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.model_comparison import model_errors
from torch import Tensor

import ltnode
from ltnode.data import Dataset, Split
from ltnode.models.averaging import WeightAverage
from ltnode.training import RunStatus, checkpoint, fit_seeds
from training.tiny import Stop, stop_at

pytestmark = pytest.mark.gpu


def images(n: int = 512) -> Dataset:
    """Noise images whose label is the brightest tenth of the first pixels, which can be learnt in a few steps."""
    x = torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = x.flatten(1)[:, :100].reshape(n, 10, 10).mean(dim=2).argmax(dim=1)
    split = Split(x, y)
    return Dataset("noise", "classification", split, split, n_classes=10)


def config(**changes: Any) -> ltnode.TrainConfig:
    """24 steps in fp32, where two runs differ only in the order of sums; a checkpoint every 4 steps and a line every 2."""
    values: dict[str, Any] = {
        "epochs": 6,
        "batch_size": 128,
        "optimizer": "sgd",
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "log_every": 2,
        "checkpoint_epochs": 1,
        "checkpoint_minutes": None,
        "device": "cuda",
        "accelerate": "fused",
        "precision": "fp32",
    }
    return ltnode.TrainConfig(**{**values, **changes})


def model(seed: int) -> ltnode.Model:
    return ltnode.build("lt-node", ltnode.InputSpec((1, 28, 28), "classification", 10), seed=seed)


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Norm of the difference of two sets of tensors, in units of the first."""
    assert one.keys() == other.keys()
    difference = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return (difference / sum(float(value.double().square().sum()) for value in one.values())) ** 0.5


def weights(run: ltnode.Run) -> dict[str, Tensor]:
    return {name: p.detach().cpu() for name, p in run.model.named_parameters()}


def change(run: ltnode.Run, seed: int) -> dict[str, Tensor]:
    """The change of the weights by training; the weights themselves are dominated by their initial values."""
    start = dict(model(seed).named_parameters())
    return {name: p - start[name].detach() for name, p in weights(run).items()}


def last_momentum(run: ltnode.Run) -> dict[str, Tensor]:
    assert run.path is not None
    found = checkpoint.latest(run.path / "checkpoints")
    assert found is not None
    return {name: value for name, value in found.tensors.items() if name.endswith("momentum_buffer")}


@pytest.mark.parametrize("accelerate", ["fused", "graph"])
def test_an_interrupted_captured_training_ends_like_the_whole_one(accelerate: str, tmp_path: Path):
    """Stopped after step 10, resumed from the checkpoint at step 8 by a new GraphStep: weights, momentum and losses agree."""
    chosen = config(accelerate=accelerate)
    whole = ltnode.fit(model(0), images(), chosen, out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(model(0), images(), chosen, out=tmp_path / "parts", on_log=stop_at(10))
    found = checkpoint.latest(tmp_path / "parts" / "checkpoints")
    assert found is not None and found.step == 8
    parts = ltnode.fit(model(0), images(), chosen, out=tmp_path / "parts", resume=True)
    assert parts.status is RunStatus.COMPLETE
    assert [line["step"] for line in parts.history] == [line["step"] for line in whole.history]
    assert distance(change(whole, 0), change(parts, 0)) < 0.1
    assert distance(last_momentum(whole), last_momentum(parts)) < 0.2
    for a, b in zip(whole.history, parts.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=0.02), a["step"]


def test_a_new_captured_step_takes_over_the_momentum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The momentum of the resumed step is that of the checkpoint, bit for bit."""
    from ltnode.accelerate import graph_step as accelerated

    with pytest.raises(Stop):
        ltnode.fit(model(0), images(), config(), out=tmp_path / "run", on_log=stop_at(10))
    found = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    seen: list[list[Tensor]] = []
    original = accelerated.GraphStep.__call__

    def noting(self: accelerated.GraphStep, batch: Any) -> dict[str, Tensor]:
        if not seen:
            seen.append([self.optimizer.state[p]["momentum_buffer"].cpu().clone() for p in self.sgd.parameters])
        return original(self, batch)

    monkeypatch.setattr(accelerated.GraphStep, "__call__", noting)
    ltnode.fit(model(0), images(), config(), out=tmp_path / "run", resume=True)
    kept = [found.tensors[f"optimizer.main.{index}.momentum_buffer"] for index in range(len(seen[0]))]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], kept, strict=True))
    assert float(kept[0].abs().max()) > 0


@pytest.mark.parametrize(("accelerate", "precision"), [("fused", "bf16"), ("fused", "fp32"), ("graph", "fp32"), ("off", "fp32")])
def test_a_captured_training_ends_with_the_average_of_its_weights(accelerate: str, precision: str):
    """Reference: the reference average of the weights at every step of the same training (float32 rounding, 1e-5).

    A masked step leaves the weights as they are and is not counted.
    """
    trained = model(0).cuda()
    expected, masked = WeightAverage(trained.parameters(), 0.9), [0]

    def add(line: Any) -> None:
        if line.get("masked_updates", 0) == masked[0]:
            expected.update()
        masked[0] = line.get("masked_updates", 0)

    chosen = config(accelerate=accelerate, precision=precision, averaging=0.9, log_every=1, validation_fraction=0.1)
    ltnode.fit(trained, images(), chosen, on_log=add)
    for value, p in zip(expected.averaged(), trained.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-5, atol=1e-6)


def test_a_captured_training_takes_the_targets_of_a_teacher():
    """A teacher that knows the labels gives the training on labels, up to the order of sums."""

    def knows(x: Tensor) -> Tensor:
        labels = x.flatten(1)[:, :100].reshape(len(x), 10, 10).mean(dim=2).argmax(dim=1)
        return torch.nn.functional.one_hot(labels, 10).float()

    plain = ltnode.fit(model(0), images(), config())
    taught = ltnode.fit(model(0), images(), config(), teacher=knows)
    assert distance(change(plain, 0), change(taught, 0)) < 0.1


def test_concurrent_runs_end_like_runs_alone(tmp_path: Path):
    """Two seeds on two streams end like each of them alone; their folders are complete and hold the returned models."""
    together = fit_seeds(model, images(), config(), (0, 1), tmp_path / "together")
    alone = [ltnode.fit(model(seed), images(), config(seed=seed), out=tmp_path / f"alone{seed}") for seed in (0, 1)]
    for seed, (a, b) in enumerate(zip(alone, together, strict=True)):
        assert b.status is RunStatus.COMPLETE and b.path == tmp_path / f"together-seed{seed}"
        assert distance(change(a, seed), change(b, seed)) < 0.1
        assert b.history[-1]["loss"] == pytest.approx(a.history[-1]["loss"], rel=0.02)
        assert {"config.json", "model.safetensors", "metrics.jsonl", "results.json"} <= {p.name for p in b.path.iterdir()}
        loaded = ltnode.load(b.path)
        assert all(torch.equal(p.detach().cpu(), weights(b)[name]) for name, p in loaded.named_parameters())
    # Another seed differs by more than the tolerance above, so the comparison is meaningful.
    assert distance(change(alone[0], 0), change(together[1], 1)) > 0.2


@pytest.mark.parametrize("name", ["lt-node", "alt-node", "node"])
@pytest.mark.parametrize(("precision", "outputs", "gradient"), [("fp32", 1e-4, 0.02), ("tf32", 0.01, 0.15), ("bf16", 0.03, 0.3)])
def test_a_whole_fused_model_equals_its_float64_self(name: str, precision: str, outputs: float, gradient: float):
    """Outputs, loss and all gradients agree up to the rounding of the convolutions' inputs and to flipped ReLU masks."""
    errors = model_errors(name, "cifar10", 64, 3, precision, "cuda")
    assert errors["outputs"] < outputs and errors["loss"] < outputs and errors["prediction"] < outputs, errors
    assert errors["gradient"] < gradient, errors
