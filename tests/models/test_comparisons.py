"""Deep ensemble, Monte-Carlo dropout and STEER: the model contract, their specific properties, and learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from endtime_contract import EndTimeContract
from scipy import stats
from torch import Tensor, nn

import ltnode
from ltnode.endtime import EndTime
from ltnode.errors import InputError
from ltnode.models import InputSpec, LatentTimeODE, Model, Parts, build
from ltnode.models.ensemble import Ensemble
from ltnode.models.mc_dropout import DropoutODE, MaskedDropout
from ltnode.models.steer import SteerTime
from ltnode.training import train_preset
from models.contract_suite import SAME, ModelContract
from models.learning import gap_rmse, mnist_error
from models.test_contract import LatentTimeContract

VECTORS = InputSpec((2,), "classification", 3)
IMAGES = InputSpec((1, 10, 10), "classification", 3)


# -- deep ensemble -----------------------------------------------------------------------------------------------------------


class EnsembleContract(ModelContract):
    name, random_draws = "ensemble", False

    def roughen(self, model: Model) -> bool:
        """Its first member."""
        assert isinstance(model, Ensemble)
        return LatentTimeContract.roughen(self, model.networks[0])  # type: ignore[arg-type]


class TestEnsemble(EnsembleContract):
    options: ClassVar = {"members": 2, "width": 8}


def ensemble(data: str | InputSpec = VECTORS, members: int = 3) -> Ensemble:
    model = build("ensemble", data, seed=0, width=8, members=members)
    assert isinstance(model, Ensemble)
    return model


def test_ensemble_loss_is_the_sum_of_independent_networks():
    """The loss is the sum over the members, whose gradients are those of each member alone."""
    model, x, y = ensemble(), torch.randn(6, 2), torch.randint(3, (6,))
    loss = model.loss(x, y)
    loss.backward()
    alone = [member.loss(x, y) for member in model.networks]
    torch.testing.assert_close(loss, torch.stack(alone).sum())
    for member, own in zip(model.networks, alone, strict=True):
        gradients = torch.autograd.grad(own, list(member.parameters()))
        for p, gradient in zip(member.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient)
    starts = [member.field.layers[0].weight for member in model.networks]
    assert not torch.equal(starts[0], starts[1])


def test_ensemble_members_train_as_if_alone(tmp_path: Path):
    """Trained by `ltnode.fit` with momentum and weight decay, every member ends like a NODE with the same initial weights."""
    data, model = ltnode.data.gap_data(40), build("ensemble", "synthetic", seed=0, width=6, members=2)
    config = ltnode.TrainConfig(epochs=4, batch_size=16, optimizer="sgd", lr=0.02, weight_decay=1e-3, device="cpu")
    lone = []
    for member in model.networks:
        node = build("node", "synthetic", width=6)
        node.load_state_dict(member.state_dict())
        ltnode.fit(node, data, config)
        lone.append(node)
    ltnode.fit(model, data, config)
    for member, node in zip(model.networks, lone, strict=True):
        for a, b in zip(member.parameters(), node.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_ensemble_members_take_turns():
    """S = 2 M repeats every network, S < M takes the first S; the probabilities for S = M are the mean."""
    model, x = ensemble(), torch.randn(4, 2)
    single = torch.stack([member.predict(x, samples=1).probs for member in model.networks])
    torch.testing.assert_close(model.predict(x, samples=3).probs, single.mean(dim=0))
    torch.testing.assert_close(model.predict(x, samples=6).member_probs, torch.cat([single, single]))
    torch.testing.assert_close(model.predict(x, samples=2).member_probs, single[:2])


def test_ensemble_noise_is_the_root_of_the_mean_variance():
    model = ensemble("synthetic")
    with torch.no_grad():
        for std, member in zip((0.1, 0.2, 0.4), model.networks, strict=True):
            member.likelihood.log_std.fill_(math.log(std))
    p = model.predict(torch.randn(5, 1), samples=3)
    assert float(p.noise_std) == pytest.approx(math.sqrt((0.01 + 0.04 + 0.16) / 3))
    assert p.stats is not None
    single = [member.predict(torch.randn(5, 1), samples=1).stats for member in model.networks]
    assert p.stats.n_evaluations == sum(s.n_evaluations for s in single)


def test_an_ensemble_of_different_tasks_is_refused():
    with pytest.raises(InputError, match="the same task"):
        Ensemble([build("node", "synthetic"), build("node", VECTORS)])  # type: ignore[list-item]
    with pytest.raises(InputError, match="one or more"):
        Ensemble([])


# -- Monte-Carlo dropout -----------------------------------------------------------------------------------------------------


class DropoutContract(ModelContract):
    name = "mc-dropout"

    def roughen(self, model: Model) -> bool:
        """The network without its masks; with masks some inputs need finer grids as well."""
        assert isinstance(model, DropoutODE)
        return LatentTimeContract.roughen(self, model.node)  # type: ignore[arg-type]


class TestDropoutPaper(DropoutContract):
    preset = "paper"


class TestDropoutVectors(DropoutContract):
    data = VECTORS
    options: ClassVar = {"width": 10, "augment": 2, "solver": {"rtol": 1e-3}}


class TestDropoutImages(DropoutContract):
    data, preset = IMAGES, "paper"
    options: ClassVar = {"width": 8, "rate": 0.3}


def dropout_ode(data: str | InputSpec = VECTORS, **options: Any) -> DropoutODE:
    model = build("mc-dropout", data, seed=0, **{"width": 8, "rate": 0.5, **options})
    assert isinstance(model, DropoutODE)
    return model


class MaskLog:
    """Records the masks at every evaluation of a field."""

    def __init__(self, model: DropoutODE) -> None:
        self.masks: list[Tensor] = []
        layer = next(m for m in model.node.field.modules() if isinstance(m, MaskedDropout))

        def note(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            mask = module.mask if module.member_mask is None else module.member_mask
            self.masks.append(mask.clone())

        layer.register_forward_hook(note)


@pytest.mark.parametrize("training", ["adaptive", "kept"])
@pytest.mark.parametrize("recompute", [False, True])
def test_one_mask_per_solve(training: str, recompute: bool):
    """Grid search, replay and recomputed steps of the backward pass use the same mask per sample; the next pass uses another.

    The loss is then a deterministic function, whose gradient agrees with finite differences (float64, truncation 1e-4).
    """
    model = dropout_ode(solver={"training": training, "recompute": recompute, "rtol": 1e-4, "atol": 1e-4}).double()
    log = MaskLog(model)
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randint(3, (6,))
    model.loss(x, y).backward()
    assert len(log.masks) > 14, "a search and a replay, or a checked pass"
    assert all(torch.equal(mask, log.masks[0]) for mask in log.masks)
    assert log.masks[0].shape == (6, 8)
    assert len({tuple(row.tolist()) for row in log.masks[0]}) > 1, "every sample has its own"
    before = log.masks[0]
    model.loss(x, y)
    assert not torch.equal(log.masks[-1], before)


def test_the_gradient_of_a_masked_solve_is_right():
    """With the same seed and thereby the same masks, d loss / d weight agrees with a central difference (float64)."""
    model = dropout_ode(solver={"training": "adaptive"}).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randint(3, (6,))
    weight = model.node.field.layers[0].weight

    def loss() -> Tensor:
        torch.manual_seed(4)
        return model.loss(x, y)

    (gradient,) = torch.autograd.grad(loss(), weight)
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight[0, 1] += step
            values.append(float(loss()))
            weight[0, 1] -= step
    assert float(gradient[0, 1]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("data", [VECTORS, IMAGES])
def test_members_are_solves_of_their_own_masked_network(data: InputSpec):
    """Every one of 4 members agrees with a solve with its mask, on a grid that needs no refinement (float32: 1e-5)."""
    model = dropout_ode(data).eval()
    model.node.grid = torch.linspace(0.0, 1.0, 17, dtype=torch.float64)
    x = torch.randn(3, *data.shape)
    together = model.predict(x, samples=4, seed=2)
    layers = [m for m in model.node.field.modules() if isinstance(m, MaskedDropout)]
    masks = []
    hooks = [layer.register_forward_hook(lambda m, args, out: masks.append(m.member_mask)) for layer in layers]
    model.predict(x, samples=4, seed=2)
    for hook in hooks:
        hook.remove()
    for s in range(4):
        for layer, mask in zip(layers, masks, strict=False):
            layer.member_mask = mask[s : s + 1]
        with torch.no_grad():
            alone = model.node(x, torch.ones(1))
        torch.testing.assert_close(together.outputs[s], alone[0], **SAME)
    assert float(together.outputs.std(dim=0).max()) > 0
    assert together.stats is not None
    assert together.stats.n_refreshed == 0


def test_masks_drop_the_right_share_and_keep_the_mean():
    """Values 0 and 1/(1 - rate); the share of zeros is the rate within 4 standard errors of 200,000 channels."""
    layer = MaskedDropout(200, rate=0.3)
    mask = layer.masks_from(torch.rand(1000, 200))
    torch.testing.assert_close(mask.unique(), torch.tensor([0.0, 1 / 0.7]))
    assert float((mask == 0).float().mean()) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 200_000))


def test_eval_mode_without_masks_is_the_mean_network():
    """Eval mode has no mask for any batch; in train mode masks that were drawn for another batch size are refused."""
    model, plain = dropout_ode(), build("node", VECTORS, seed=0, width=8)
    model.loss(torch.randn(6, 2), torch.randint(3, (6,)))
    x = torch.randn(5, 2)
    with torch.no_grad():
        torch.testing.assert_close(model.eval().node(x, torch.ones(1)), plain.eval()(x, torch.ones(1)), **SAME)
    model.train()
    with pytest.raises(InputError, match="must be a multiple of 6, .*, not 5"):
        model.node.field(torch.tensor(0.0), torch.randn(5, 8))


@pytest.mark.parametrize("data", ["synthetic", "mnist"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_dropout_adds_no_parameters_and_reaches_every_hidden_layer(data: str, preset: str):
    model, plain = build("mc-dropout", data, preset, seed=0), build("node", data, preset, seed=0)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())
    layers = [m.width for m in model.node.field.modules() if isinstance(m, MaskedDropout)]
    assert layers == {"mnist": [64], "synthetic": [32, 32] if preset == "default" else [100, 150, 100]}[data]


def test_own_fields_bring_their_own_dropout():
    """A field that ltnode does not know is refused, unless it has `MaskedDropout` layers."""

    class Own(nn.Module):
        def __init__(self, drop: bool):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.drop = MaskedDropout(4, 0.4) if drop else nn.Identity()

        def forward(self, t: Tensor, h: Tensor) -> Tensor:
            return self.linear(self.drop(h))

    with pytest.raises(InputError, match="MaskedDropout"):
        build("mc-dropout", VECTORS, parts=Parts(nn.Linear(2, 4), Own(False), nn.Linear(4, 3)))
    model = build("mc-dropout", VECTORS, parts=Parts(nn.Linear(2, 4), Own(True), nn.Linear(4, 3)))
    assert float(model.predict(torch.randn(5, 2)).epistemic.max()) > 0


@pytest.mark.no_typecheck
@pytest.mark.parametrize("rate", [-0.1, 1.0, "0.1"])
def test_impossible_rates_are_refused(rate: Any):
    with pytest.raises(InputError, match="rate"):
        MaskedDropout(4, rate)


# -- STEER -------------------------------------------------------------------------------------------------------------------


class TestSteerTime(EndTimeContract):
    has_density = False

    def make(self) -> EndTime:
        return SteerTime(1.0, 0.4)


class TestSteer(LatentTimeContract):
    name, random_draws = "steer", False


def test_steer_trains_on_the_interval_and_predicts_at_its_middle():
    """One T ~ U(0.5, 1.5) per step (Kolmogorov-Smirnov over 500, p > 1e-3), a function of (seed, step); predictions at 1."""
    model = build("steer", VECTORS, seed=0)
    times = torch.cat([model.training_times(4, seed=0, step=step) for step in range(500)])
    assert times.shape == (500,)
    assert stats.kstest(times.numpy(), "uniform", args=(0.5, 1.0)).pvalue > 1e-3
    assert torch.equal(model.training_times(4, seed=0, step=7), times[7:8])
    p = model.predict(torch.randn(3, 2), samples=5)
    assert torch.equal(p.times, torch.ones(5))
    assert float(p.epistemic.max()) == pytest.approx(0.0, abs=1e-6)


def test_steer_loss_is_the_cross_entropy_at_the_drawn_time():
    """Against a NODE with the same weights whose end-time is the drawn one."""
    model = build("steer", VECTORS, seed=0)
    x, y = torch.randn(6, 2), torch.randint(3, (6,))
    loss = model.loss(x, y, times=torch.tensor([1.37]))
    assert isinstance(model, LatentTimeODE)
    with torch.no_grad():
        logits = model(x, torch.tensor([1.37]), "training")[0]
    torch.testing.assert_close(loss.detach(), nn.functional.cross_entropy(logits, y))


def test_steer_needs_positive_times():
    for spread in (0.0, 1.0, 2.0):
        with pytest.raises(InputError, match="spread"):
            SteerTime(1.0, spread)
    model = build("steer", VECTORS, end_time=SteerTime(2.0, 0.5))
    assert torch.equal(model.predict(torch.randn(3, 2), samples=2).times, torch.tensor([2.0, 2.0]))


# -- all of them: presets, engine, learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ensemble", "mc-dropout", "steer"])
def test_comparisons_train_like_a_plain_node(name: str):
    """The same tables as NODE: rate 0.1, momentum 0.9, weight decay 5e-4."""
    ours, node = (train_preset(n, "cifar10", "paper") for n in (name, "node"))
    assert ours.replace(model="node") == node
    assert ours.role_options("weights") == (0.1, 5e-4)


@pytest.mark.parametrize("name", ["sde-net", "node-gp", "ensemble", "mc-dropout", "steer"])
def test_a_resumed_run_is_the_whole_run(name: str, tmp_path: Path):
    """A stopped and resumed training ends with the same weights bit for bit, and the loaded model predicts the same."""
    options = {"gp": {"grid_size": 16}} if name == "node-gp" else {"members": 2} if name == "ensemble" else {}
    data = ltnode.data.gap_data(32)
    config = ltnode.TrainConfig(
        epochs=4, batch_size=16, lr=5e-3, device="cpu", log_every=1, checkpoint_epochs=1, checkpoint_minutes=None
    )

    class Stop(Exception):
        pass

    def stop(line: Any) -> None:
        if line["step"] == 5:
            raise Stop

    def make() -> Model:
        return build(name, "synthetic", seed=0, width=6, **options)

    whole = ltnode.fit(make(), data, config, out=tmp_path / "whole")
    with pytest.raises(Stop):
        ltnode.fit(make(), data, config, out=tmp_path / "parts", on_log=stop)
    ltnode.fit(make(), data, config, out=tmp_path / "parts", resume=True)
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "parts")]
    assert files[0] == files[1]
    loaded, x = ltnode.load(tmp_path / "parts"), torch.randn(5, 1)
    assert torch.equal(loaded.predict(x).outputs, whole.model.predict(x).outputs)


@pytest.mark.parametrize("name", ["mc-dropout", "steer"])
def test_learns_the_gap_data(name: str):
    """Default preset, 120 steps: residuals near the noise 0.1. (Members of an ensemble are plain NODEs, see above.)"""
    _, rmse = gap_rmse(name, steps=120, points=60, width=16)
    assert rmse < 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("ensemble", {"members": 2}), ("mc-dropout", {}), ("steer", {})],
    ids=["ensemble", "mc-dropout", "steer"],
)
def test_learns_mnist(name: str, options: dict, real_data_root: Path):
    """6,000 images, test error under 6 %."""
    assert mnist_error(name, real_data_root, epochs=5, options=options) < 0.06
