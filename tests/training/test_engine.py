"""The training loop: what it computes, in which order, and how it stops."""

from __future__ import annotations

import copy
import json
import logging
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ltnode
from ltnode.data import Augmentation, Dataset
from ltnode.errors import ConfigError, InputError
from ltnode.training import RunStatus, TrainingError, checkpoint
from ltnode.training.batches import TrainingData
from training.tiny import TwoPhaseModel, read_lines, tiny_config, tiny_data, tiny_model, without_timing


@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
def test_every_model_learns_the_gap_data(name: str):
    """The mean loss of the last steps is clearly below that of the first: 40 Adam steps on 48 points."""
    config = tiny_config(optimizer="adam", epochs=40, batch_size=None, lr=0.02, milestones=(), log_every=10)
    run = ltnode.fit(tiny_model(name), tiny_data(), config)
    losses = [line["loss"] for line in run.history]
    assert run.status is RunStatus.COMPLETE and len(losses) == 4
    assert losses[-1] < losses[0] - 0.1
    assert not run.model.training


def test_one_step_is_sgd_with_the_rates_of_each_role():
    """The reference is `model.loss` at the same end-times and w - lr (grad + wd w); the arithmetic is the same, hence 1e-7."""
    data = tiny_data(16)
    roles = {"role_lr": {"variational": 0.5}, "role_weight_decay": {"variational": 0.02}}
    config = tiny_config(epochs=1, momentum=0.0, lr=0.1, weight_decay=0.01, **roles)
    model = tiny_model()
    before = copy.deepcopy(model)
    times = before.training_times(16, config.seed, 0, torch.arange(16))
    before.loss(data.train.x, data.train.y, n_data=16, times=times).backward()
    ltnode.fit(model, data, config)
    learnt = dict(model.named_parameters())
    for role, (lr, decay) in {"weights": (0.1, 0.01), "variational": (0.5, 0.02)}.items():
        names = {id(p): name for name, p in before.named_parameters()}
        for p in before.parameter_roles()[role]:
            expected = p - lr * (p.grad + decay * p)
            torch.testing.assert_close(learnt[names[id(p)]], expected, rtol=0, atol=1e-7)


def test_a_run_is_shown_in_one_line(tmp_path):
    """The line has model, status, steps and folder."""
    run = ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(epochs=1, model="node"), out=tmp_path / "run")
    assert repr(run) == f"Run(node, complete, 3 of 3 steps, {tmp_path / 'run'})"
    assert repr(ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(epochs=1))) == (
        "Run(TwoPhaseModel, complete, 3 of 3 steps, no folder)"
    )


def test_all_phases_and_hooks_are_called_in_order():
    model = TwoPhaseModel()
    config = tiny_config(epochs=1, role_lr={"diffusion": 0.5})
    run = ltnode.fit(model, tiny_data(32), config)
    assert model.events == ["main", "after_step", "diffusion", "after_step"] * 2 + ["finish 32"]
    line = run.history[-1]
    assert line["lr"] == {"main.weights": 0.005, "diffusion.diffusion": 0.5}
    assert line["loss"] > 0 and line["diffusion.loss"] > 0


def test_a_phase_moves_its_own_parameters_only():
    """With learning rate 0 the parameters of the second phase stay bit for bit, whatever gradients the first leaves."""
    model = TwoPhaseModel()
    noise = copy.deepcopy(model.noise.state_dict())
    ltnode.fit(model, tiny_data(32), tiny_config(epochs=2, role_lr={"diffusion": 0.0}, role_weight_decay={"diffusion": 0.1}))
    assert all(torch.equal(value, noise[name]) for name, value in model.noise.state_dict().items())


def test_milestones_change_every_learning_rate():
    run = ltnode.fit(tiny_model(), tiny_data(), tiny_config(role_lr={"variational": 0.01}, log_every=3))
    rates = [(line["lr"]["main.weights"], line["lr"]["main.variational"]) for line in run.history]
    expected = [(0.005, 0.01)] * 4 + [(0.005 * 0.1, 0.01 * 0.1)] * 4
    assert np.allclose(rates, expected, rtol=1e-12)


def test_the_order_is_a_permutation_by_seed_and_epoch():
    config = tiny_config(batch_size=7)
    data = TrainingData.of(tiny_data(20), tiny_model(), config, torch.device("cpu"))
    orders = [torch.cat([batch.indices for batch in data.batches(epoch)]) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(20))
    assert not torch.equal(orders[0], orders[1])
    late = list(data.batches(1, skip=2))
    assert [b.step for b in late] == [5] and torch.equal(late[0].indices, orders[1][14:])
    other = TrainingData.of(tiny_data(20), tiny_model(), config.replace(seed=4), torch.device("cpu"))
    assert not torch.equal(other.epoch_order(0), orders[0])


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [7, 7, 6]), (True, [7, 7])])
def test_the_last_batch_is_kept_or_dropped(drop_last: bool, sizes: list[int]):
    data = TrainingData.of(tiny_data(20), tiny_model(), tiny_config(batch_size=7, drop_last=drop_last), torch.device("cpu"))
    assert [len(batch.x) for batch in data.batches(0)] == sizes
    assert data.steps_per_epoch == len(sizes)


def test_shares_of_processes_make_up_the_batch_of_one():
    """For any number of processes, also more than examples, the joined shares are the same examples in the same order."""
    data = TrainingData.of(tiny_data(20), tiny_model(), tiny_config(batch_size=6), torch.device("cpu"))
    whole = [batch.indices for batch in data.batches(2)]
    for world in (2, 3, 8):
        shares = [list(data.batches(2, rank=rank, world=world)) for rank in range(world)]
        for m, indices in enumerate(whole):
            assert torch.equal(torch.cat([share[m].indices for share in shares]), indices)
            assert sum(share[m].share for share in shares) == pytest.approx(1)


def test_images_are_augmented_and_normalised_by_seed_epoch_and_index():
    """The reference is `Dataset.prepare` with the same (seed, epoch, indices)."""
    x = torch.randint(0, 256, (24, 1, 12, 12), dtype=torch.uint8)
    images = Dataset.from_arrays(x, torch.arange(24) % 3, augment=Augmentation(2, flip=True))
    model = ltnode.build("node", images, width=8)
    config = tiny_config(batch_size=8, epochs=2)
    data = TrainingData.of(images, model, config, torch.device("cpu"))
    for batch in data.batches(1):
        raw = images.train.x[batch.indices]
        assert torch.equal(batch.x, images.prepare(raw, seed=3, epoch=1, indices=batch.indices))
    run = ltnode.fit(model, images, config)
    assert run.status is RunStatus.COMPLETE and math.isfinite(run.history[-1]["loss"])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    """The weights agree bit for bit, and the random state of the caller is unchanged."""

    def train(seed: int):
        with torch.random.fork_rng():  # initialising the layers draws random numbers
            model = TwoPhaseModel()
        run = ltnode.fit(model, tiny_data(), tiny_config(seed=seed))
        return run, model.state_dict()

    torch.manual_seed(11)
    state = torch.get_rng_state()
    (one, w1), (two, w2), (_, w3) = train(0), train(0), train(1)
    assert torch.equal(state, torch.get_rng_state())
    assert without_timing(one.history) == without_timing(two.history)
    assert all(torch.equal(w1[k], w2[k]) for k in w1)
    assert not torch.equal(w1["linear.weight"], w3["linear.weight"])


def test_looking_at_the_model_does_not_change_the_training():
    """More log lines and the evaluation of a validation split do not change the random numbers of the training."""
    weights = []
    for log_every in (1, 100):
        model = TwoPhaseModel()
        ltnode.fit(model, tiny_data(), tiny_config(log_every=log_every, validation_fraction=0.25))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


def test_validation_examples_are_held_out_and_evaluated():
    run = ltnode.fit(tiny_model(), tiny_data(40), tiny_config(epochs=4, validation_fraction=0.2, log_every=2))
    assert run.results["provenance"]["data"]["n_validation"] == 8
    assert run.results["provenance"]["data"]["n_train"] == 32
    validated = [line["step"] for line in run.history if "validation" in line]
    assert validated == [2, 4, 6, 8] and all(run.history[m]["validation"]["rmse"] > 0 for m in range(4))


def test_limit_uses_only_so_many_examples():
    run = ltnode.fit(tiny_model("node"), tiny_data(40), tiny_config(epochs=1, limit=20, batch_size=None))
    assert run.results["provenance"]["data"]["n_train"] == 20


def test_a_pair_of_arrays_is_data_too():
    """Arrays and tensors are used without standardisation or a held-out part, with any sensible dtype of y."""
    data = tiny_data(32)
    reference = ltnode.fit(tiny_model("node"), data, tiny_config(epochs=2)).model
    pair = ltnode.fit(tiny_model("node"), (data.train.x.numpy(), data.train.y.numpy()[:, None]), tiny_config(epochs=2)).model
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), pair.parameters(), strict=True))


def test_without_a_configuration_the_preset_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ltnode.training.presets._VECTOR_STEPS", 3)
    run = ltnode.fit(tiny_model("alt-node"), tiny_data(16))
    assert (run.config.model, run.config.preset, run.config.epochs) == ("alt-node", "default", 3)


def test_bf16_layers_train_close_to_fp32():
    """bfloat16 has 8 significant bits, so losses agree to about 1e-2; parameters and state stay float32."""
    losses = []
    for precision in ("fp32", "bf16"):
        config = tiny_config(epochs=4, precision=precision, milestones=())
        run = ltnode.fit(tiny_model(), tiny_data(), config)
        losses.append([line["loss"] for line in run.history])
        assert all(p.dtype == torch.float32 for p in run.model.parameters())
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[1], losses[0], atol=3e-2)


def test_the_log_holds_loss_parts_posterior_solver_work_and_speed(tmp_path):
    run = ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "run")
    lines = read_lines(tmp_path / "run")
    assert lines == run.history and [line["step"] for line in lines] == [4, 8, 12, 16, 20, 24]
    line = lines[0]
    assert line["loss"] == pytest.approx(-line["expected_log_likelihood"] + 0.05 * line["kl"], abs=1e-6)
    assert {"alpha", "beta", "q05", "q50", "q95", "tail", "noise_std"} <= line["learnt"].keys()
    assert line["solver"]["evaluations"] >= line["solver"]["accepted_steps"] >= 1
    assert line["examples_per_second"] > 0


def test_results_record_where_they_come_from(tmp_path):
    config = tiny_config(epochs=1)
    ltnode.fit(tiny_model("node"), tiny_data(), config, out=tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "complete" and results["steps"] == results["total_steps"] == 3
    provenance = results["provenance"]
    assert provenance["version"] == ltnode.__version__ and provenance["torch"] == torch.__version__
    assert provenance["config_hash"] == config.hash and provenance["seed"] == 3
    assert provenance["data"]["checksums"] == tiny_data().checksums and provenance["data"]["verified"] is True
    assert provenance["device"].startswith("cpu") and provenance["wall_time_s"] > 0
    assert {"git_commit", "git_modified"} <= provenance.keys()


class Poisoned(nn.Module):
    """A head that returns NaN from its n-th call in train mode."""

    def __init__(self, head: nn.Module, calls: int) -> None:
        super().__init__()
        self.head, self.left = head, calls

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.left -= 1
        return self.head(h) * (math.nan if self.left < 0 else 1.0)


def test_a_loss_that_is_no_number_stops_with_a_remedy_and_keeps_the_last_checkpoint(tmp_path):
    """Step 7 is bad; checkpoints are at steps 3 and 6, and the weights in memory are those before the bad step."""
    model = tiny_model("node")
    model.head = Poisoned(model.head, 7)
    with pytest.raises(TrainingError, match=r"step 7 .* lower lr") as caught:
        ltnode.fit(model, tiny_data(), tiny_config(), out=tmp_path / "run")
    assert caught.value.status is RunStatus.NON_FINITE
    assert caught.value.run is not None and [line["step"] for line in caught.value.run.history] == [4]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-0000000003", "step-0000000006"]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "non_finite" and "lower lr" in results["message"]


def test_an_exploding_learning_rate_ends_with_a_status(tmp_path):
    """Whether the loss or the solve fails first, the error says what to change, and no broken state is saved."""
    config = tiny_config(lr=1e12, epochs=50)
    with pytest.raises(TrainingError, match="lower lr") as caught:
        ltnode.fit(tiny_model(solver={"max_steps": 50}), tiny_data(), config, out=tmp_path / "run")
    assert caught.value.status in (RunStatus.NON_FINITE, RunStatus.SOLVER_FAILED)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["status"] == caught.value.status.value
    last = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert last is None or all(torch.isfinite(v).all() for k, v in last.tensors.items() if k.startswith("model."))


def test_a_failed_solve_names_the_remedy():
    model = tiny_model(solver={"training": "adaptive", "max_steps": 1, "rtol": 1e-12, "atol": 1e-12})
    with pytest.raises(TrainingError, match=r"max_steps.*What to do: lower lr, loosen") as caught:
        ltnode.fit(model, tiny_data(), tiny_config())
    assert caught.value.status is RunStatus.SOLVER_FAILED


@contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    """Handle a signal inside the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_stays_ignored(number: int):
    """A background job inherits an ignored SIGINT, so that Ctrl-C in its terminal does not stop it."""
    with handling(number, signal.SIG_IGN):
        run = ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(), on_log=lambda line: signal.raise_signal(number))
        assert signal.getsignal(number) is signal.SIG_IGN
    assert run.status is RunStatus.COMPLETE


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_stop_signal_ends_after_the_step_with_a_checkpoint(tmp_path, number: int, error: type[BaseException]):
    """The signal arrives in step 4; a checkpoint of step 4 is written although none is due, and then the signal takes effect."""

    def raise_error(*_: object) -> None:
        raise error

    # Tests that run in the background inherit an ignored SIGINT.
    with handling(number, raise_error), pytest.raises(error):
        ltnode.fit(
            tiny_model("node"),
            tiny_data(),
            tiny_config(checkpoint_epochs=None),
            out=tmp_path / "run",
            on_log=lambda line: signal.raise_signal(number),
        )
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000000004"]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["status"] == "interrupted"


def test_data_and_model_must_fit():
    with pytest.raises(InputError, match="classification problem"):
        ltnode.fit(tiny_model(), ltnode_classes(), tiny_config())
    wide = Dataset.from_arrays(torch.randn(20, 2), torch.randn(20), task="regression")
    with pytest.raises(InputError, match=r"shape \(2,\).*built for \(1,\)"):
        ltnode.fit(tiny_model(), wide, tiny_config())
    with pytest.raises(InputError, match="NaN"):
        ltnode.fit(tiny_model(), (torch.tensor([[math.nan]] * 4), torch.zeros(4)), tiny_config())
    with pytest.raises(InputError, match="pair"):
        ltnode.fit(tiny_model(), torch.zeros(4, 1), tiny_config())
    with pytest.raises(InputError, match="batch_size must be <= .* with drop_last"):
        ltnode.fit(tiny_model(), tiny_data(8), tiny_config(drop_last=True))


def ltnode_classes() -> Dataset:
    return Dataset.from_arrays(torch.randn(20, 1), torch.arange(20) % 2)


def test_a_configuration_for_something_else_is_refused():
    with pytest.raises(ConfigError, match="'node'"):
        ltnode.fit(tiny_model("lt-node"), tiny_data(), tiny_config(model="node"))
    with pytest.raises(ConfigError, match="Did you mean 'diffusion'"):
        ltnode.fit(TwoPhaseModel(), tiny_data(), tiny_config(role_lr={"difusion": 0.1}))
    with pytest.raises(ConfigError, match="requires out"):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), resume=True)
    frozen = tiny_model("node").requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to learn"):
        ltnode.fit(frozen, tiny_data(), tiny_config())
    with pytest.raises(ConfigError, match="'graph' is not possible: the device is cpu"):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(accelerate="graph"))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            ltnode.fit(tiny_model(), tiny_data(), tiny_config(device="cuda"))


def test_training_is_quiet_when_the_output_is_no_terminal(capfd: pytest.CaptureFixture[str]):
    logging.getLogger("ltnode").setLevel(logging.WARNING)
    ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(epochs=1))
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_a_bar_with_steps_speed_and_loss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(epochs=1))
    shown = capsys.readouterr().err
    assert "training" in shown and "3/3" in shown


def test_tensorboard_is_optional(tmp_path):
    """Event files are written; if TensorBoard is not installed, an error names the extra before anything is written."""
    config = tiny_config(epochs=1, tensorboard=True)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(ltnode.MissingExtraError, match="tensorboard"):
            ltnode.fit(tiny_model("node"), tiny_data(), config, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    else:
        ltnode.fit(tiny_model("node"), tiny_data(), config, out=tmp_path / "run")
        assert list((tmp_path / "run" / "tensorboard").iterdir())
