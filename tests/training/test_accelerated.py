"""The captured training step: what it falls back to on a CPU, and on CUDA that it trains like the eager one."""

from __future__ import annotations

import pytest
import torch

from ltnode.errors import ConfigError
from ltnode.models import build
from ltnode.training import TrainConfig
from ltnode.training.accelerated import GraphStep, accelerated_step, why_not_captured
from ltnode.training.batches import Batch
from ltnode.training.step import make_optimizers

SGD = TrainConfig(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)


def learnable_batch(step: int, device: str, size: int = 64) -> Batch:
    """Fresh images whose labels follow from their first pixels, so that two trainings have the same thing to learn."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 1, 28, 28, generator=generator)
    y = x.flatten(1)[:, :100].reshape(size, 10, 10).mean(dim=2).argmax(dim=1)
    return Batch(x.to(device), y.to(device), torch.arange(size, device=device), step, 0, 1.0)


def captured(precision: str, fused: bool) -> GraphStep:
    model = build("lt-node", "mnist", seed=0).to("cuda").train()
    config = SGD.replace(precision=precision)
    return GraphStep(model, make_optimizers(model, config), config, 1000, fused)


@pytest.mark.parametrize(
    ("model", "data", "config", "reason"),
    [
        ("lt-node", "mnist", SGD, "CUDA"),
        ("lt-node", "synthetic", SGD, "CUDA"),
    ],
)
def test_a_cpu_trains_eagerly(model: str, data: str, config: TrainConfig, reason: str):
    """Without CUDA ``auto`` means the eager step, and a wish for a graph is refused with the reason."""
    built = build(model, data, seed=0)
    example = torch.zeros(1, *built.spec["input"]["shape"])
    cpu = torch.device("cpu")
    assert accelerated_step(built, make_optimizers(built, config), config, 10, cpu, 1, example) is None
    for wish in ("graph", "fused"):
        with pytest.raises(ConfigError, match=reason):
            wished = config.replace(accelerate=wish)
            accelerated_step(built, make_optimizers(built, wished), wished, 10, cpu, 1, example)


def test_what_changes_from_pass_to_pass_is_not_captured():
    """BatchNorm, other optimisers and shared batches have reasons of their own, whatever the device offers."""
    cuda = torch.device("cuda")
    paper = build("lt-node", "synthetic", "paper", seed=0)
    assert "BatchNorm" in str(why_not_captured(paper, SGD, cuda, 1))
    plain = build("lt-node", "mnist", seed=0)
    assert why_not_captured(plain, SGD, cuda, 1) is None
    assert "SGD" in str(why_not_captured(plain, SGD.replace(optimizer="adam"), cuda, 1))
    assert "several processes" in str(why_not_captured(plain, SGD, cuda, 2))


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "fused", "bound"), [("fp32", True, 0.01), ("tf32", False, 0.02), ("bf16", True, 0.05)])
def test_captured_training_follows_the_reference(precision: str, fused: bool, bound: float):
    """200 steps on the same batches and end-times: every loss within tolerance (1e-2) and rounding."""
    step = captured(precision, fused)
    reference = build("lt-node", "mnist", seed=0).to("cuda").train()
    optimizer = make_optimizers(reference, SGD)["main"]
    for i in range(200):
        batch = learnable_batch(i, "cuda")
        times = reference.training_times(len(batch.y), SGD.seed, i, batch.indices)
        loss = reference.loss(batch.x, batch.y, 1000, times=times)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reference.after_step()
        got = step(batch)["loss"]
        assert float(got) == pytest.approx(float(loss.detach()), rel=bound), i
    assert step.counts()["masked_updates"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_a_failed_check_masks_the_update_and_leaves_no_trace(fused: bool):
    """A grid that is far too coarse for the tolerance: weights, posterior and momentum stay bit for bit, and it is counted."""
    step = captured("fp32", fused)
    for i in range(4):
        step(learnable_batch(i, "cuda"))
    torch.cuda.synchronize()
    before = [p.detach().clone() for p in step.sgd.parameters]
    momentum = [step.optimizer.state[p]["momentum_buffer"].clone() for p in step.sgd.parameters]
    with torch.no_grad():  # a field a hundred times as fast: the kept grid no longer does
        step.model.field.norm3.weight.mul_(100.0)
    fast = [p.detach().clone() for p in step.sgd.parameters]
    step(learnable_batch(4, "cuda"))
    torch.cuda.synchronize()
    assert step.counts()["masked_updates"] == 1
    assert all(torch.equal(a, b.detach()) for a, b in zip(fast, step.sgd.parameters, strict=True))
    kept = [step.optimizer.state[p]["momentum_buffer"] for p in step.sgd.parameters]
    assert all(torch.equal(a, b) for a, b in zip(momentum, kept, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, fast, strict=True))  # the change above did change something
    for i in range(5, 12):  # seen a few steps later: a new grid, and training goes on
        step(learnable_batch(i, "cuda"))
    assert step.kept.n_searches >= 2
