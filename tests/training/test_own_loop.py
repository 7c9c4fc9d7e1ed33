"""``ltnode.accelerate``: the step of `ltnode.fit` in loops outside of it, and what such loops rely on."""

from __future__ import annotations

import copy
import io
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ltnode
from ltnode.training.step import make_optimizers
from training.child import context
from training.tiny import tiny_config, tiny_data, tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"


def adam(model: nn.Module, lr: float = 0.01) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=lr)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["node", "lt-node", "alt-node"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_loop_makes_the_updates_of_fit(name: str, optimizer: str):
    """With the same optimiser, seed and batches, weights agree bit for bit with those that `ltnode.fit` reaches.

    A step takes all examples, so that both see them in the same order; `ltnode.fit` has no further work on the weights.
    """
    data, config = tiny_data(), tiny_config(batch_size=None, optimizer=optimizer, epochs=6, seed=3)
    run = ltnode.fit(tiny_model(name), data, config)
    model = tiny_model(name).train()
    chosen = make_optimizers(model, config)["main"]
    step = ltnode.accelerate(model, chosen, n_data=data.n_train, seed=3)
    for epoch in range(6):
        for group in chosen.param_groups:
            group["lr"] = group["base_lr"] * config.lr_factor(epoch)
        loss = step(data.prepare(data.train.x), data.train.y)
    assert step.steps == 6 and torch.equal(loss, step.parts["loss"]) and not loss.requires_grad
    assert same(weights(model), weights(run.model))


def test_a_model_with_several_phases_takes_one_optimiser_each():
    """SDE-Net minimises two losses over different parameters: both change, and a single optimiser is refused with the remedy."""
    model = tiny_model("sde-net").train()
    optimizers = make_optimizers(model, tiny_config())
    data, before = tiny_data(), weights(model)
    step = ltnode.accelerate(model, optimizers)
    step(data.train.x, data.train.y)
    assert {"loss", f"{model.phases[1]}.loss"} <= set(step.parts)
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True) if a.numel() > 1)
    with pytest.raises(ltnode.ConfigError, match="one optimiser for each of its phases"):
        ltnode.accelerate(model, optimizers[model.phases[0]])


def test_class_probabilities_are_targets():
    """The loss towards certain probabilities is that towards labels, up to the rounding of a sum over classes (1e-6)."""
    model = ltnode.build("lt-node", ltnode.InputSpec((2,), "classification", 3), seed=0, width=8).train()
    x, y = torch.randn(8, 2), torch.arange(8) % 3
    cases = ((copy.deepcopy(model), y), (model, nn.functional.one_hot(y, 3).float()))
    losses = [ltnode.accelerate(one, adam(one))(x, target) for one, target in cases]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)


def test_an_interrupted_loop_continues_bit_for_bit():
    """Eight steps equal four steps, a state written and read by torch, and four more of a new model, optimiser and step.

    The training grid is part of the model's state.
    """
    data = tiny_data()

    def start() -> tuple[Any, Any, Any]:
        model = tiny_model().train()
        optimizer = adam(model)
        return model, optimizer, ltnode.accelerate(model, optimizer, n_data=48)

    whole, _, step = start()
    for _ in range(8):
        step(data.train.x, data.train.y)
    first, optimizer, step = start()
    for _ in range(4):
        step(data.train.x, data.train.y)
    file = io.BytesIO()
    torch.save([first.state_dict(), optimizer.state_dict(), step.state_dict()], file)
    states = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second, optimizer, step = start()
    for part, state in zip((second, optimizer, step), states, strict=True):
        part.load_state_dict(state)
    assert second.training_grid == first.training_grid
    for _ in range(4):
        step(data.train.x, data.train.y)
    assert same(weights(second), weights(whole)) and second.training_grid == whole.training_grid


@pytest.mark.parametrize("evaluation", ["eval mode", "no gradient"])
def test_evaluating_a_loss_leaves_the_training_grid_alone(evaluation: str):
    """The loss of held-out inputs that need more steps searches them, but the next training step finds its own grid unchanged."""
    data = tiny_data()
    model = tiny_model().train()
    model.loss(data.train.x, data.train.y)
    before = copy.deepcopy(model.training_grid)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.train(evaluation != "eval mode")
    with torch.set_grad_enabled(evaluation != "no gradient"):
        far = model.loss(1e3 * data.train.x, data.train.y)
    assert torch.isfinite(far) and model.training_grid == before
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_plain_loop_replays_the_kept_grid_in_the_default_preset_only():
    """From the second step on, the default preset needs 6 evaluations per step and one; the paper's searches in every step."""
    data = tiny_data()
    for preset, kept in (("default", True), ("paper", False)):
        model = ltnode.build("lt-node", "synthetic", preset=preset, seed=0).train()
        for _ in range(3):
            model.loss(data.train.x, data.train.y).backward()
        stats = model.solve_stats
        assert (stats.n_evaluations == 6 * stats.n_accepted + 1) is kept
        assert ("training_grid" in model.state_dict()) is kept


def test_saved_models_have_no_training_grid(tmp_path: Path):
    """It is a state of training, and files of earlier versions have none; both load."""
    model = tiny_model().train()
    model.loss(tiny_data().train.x, tiny_data().train.y)
    state = model.state_dict()
    ltnode.save(model, tmp_path / "model")
    assert "training_grid" not in ltnode.load(tmp_path / "model").state_dict()
    del state["training_grid"]
    model.load_state_dict(state)
    assert model.training_grid.edges is not None


def test_a_damaged_training_grid_is_refused():
    model = tiny_model()
    for damaged in (torch.zeros(3), torch.full((8,), torch.nan), torch.tensor([1.0, 0, 0, 3, 0, 0, 1.0, 0.5])):
        with pytest.raises(ltnode.InputError, match="training grid"):
            model.load_state_dict({**model.state_dict(), "training_grid": damaged})


class Wrapper:
    """What Lightning and Accelerate put around an optimiser, as far as the step looks at it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


@pytest.mark.no_typecheck
def test_wrapped_optimisers_are_unwrapped_and_wrong_arguments_refused():
    model, data = tiny_model().train(), tiny_data()
    optimizer = adam(model)
    step = ltnode.accelerate(model, Wrapper(Wrapper(optimizer)))  # type: ignore[arg-type]
    step(data.train.x.numpy(), data.train.y)
    assert optimizer.state
    with pytest.raises(ltnode.ConfigError, match="not a Wrapper"):
        ltnode.accelerate(model, Wrapper(None))  # type: ignore[arg-type]
    with pytest.raises(ltnode.InputError, match="unwrap_model"):
        ltnode.accelerate(nn.Sequential(model), optimizer)  # type: ignore[arg-type]
    with pytest.raises(ltnode.InputError, match="one target per input"):
        step(data.train.x, data.train.y[:3])
    model.eval()
    with pytest.raises(ltnode.InputError, match=r"model.train\(\)"):
        step(data.train.x, data.train.y)


def _share_of_steps(rank: int, port: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    data, model = tiny_data(), tiny_model("alt-node", solver={"training": "fixed", "fixed_steps": 3}).train()
    step = ltnode.accelerate(model, adam(model), n_data=48)
    cut = slice(0, 20) if rank == 0 else slice(20, 48)
    for _ in range(4):
        step(data.train.x[cut], data.train.y[cut])
    torch.save(weights(model), f"{path}-{rank}")
    dist.destroy_process_group()


def test_two_processes_make_the_steps_of_one(tmp_path: Path):
    """20 and 28 of 48 examples on fixed steps: gradients are weighted by shares, so only rounding differs.

    Adam divides by the size of the gradient, hence 1e-5 in weights that move by 0.01 per step.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context().Process(target=_share_of_steps, args=(rank, port, str(tmp_path / "w"))) for rank in range(2)]
    for process in processes:
        process.start()
    data, model = tiny_data(), tiny_model("alt-node", solver={"training": "fixed", "fixed_steps": 3}).train()
    step = ltnode.accelerate(model, adam(model), n_data=48)
    for _ in range(4):
        step(data.train.x, data.train.y)
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    for rank in range(2):
        for one, other in zip(weights(model), torch.load(tmp_path / f"w-{rank}", weights_only=True), strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "package"), [("own_loop", "torch"), ("own_loop_lightning", "lightning"), ("own_loop_accelerate", "accelerate")]
)
def test_the_examples_run(name: str, package: str):
    """Each example learns the generated problem, whose targets have a standard deviation of about 1, in 20 epochs."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split("test RMSE ")[1].split()[0]) < 0.5


@pytest.mark.gpu
def test_the_step_is_captured_on_cuda(caplog: pytest.LogCaptureFixture):
    """The captured step in an own loop follows the eager one: losses of 20 steps differ by the flat update's rounding (1e-3)."""
    x = torch.randn(64, 1, 28, 28, generator=torch.Generator().manual_seed(0)).cuda()
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    losses = []
    for mode in ("off", "auto"):
        model = ltnode.build("lt-node", ltnode.InputSpec((1, 28, 28), "classification", 2), seed=0).cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step = ltnode.accelerate(model, optimizer, accelerate=mode)  # type: ignore[arg-type]
        losses.append([float(step(x, y)) for _ in range(20)])
    assert step.counts()["masked_updates"] == 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
