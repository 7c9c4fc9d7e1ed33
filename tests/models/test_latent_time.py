"""LatentTimeODE: one solve for any S and B, training solves and their end-times, user-defined parts and options."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import ltnode
from ltnode import AmortizedGammaTime, GammaTime, LatentTimeODE
from ltnode.models import InputSpec, ObjectiveOptions, SolverOptions, build, build_from_spec
from ltnode.models.images import TimeConv2d
from ltnode.models.vectors import TimeMLP, prepend_time

VECTORS = InputSpec((2,), "classification", 3)


def built(name: str, data: str | InputSpec = "synthetic", preset: str = "default", **options: Any) -> LatentTimeODE:
    model = build(name, data, preset, seed=0, **options)  # type: ignore[arg-type]
    assert isinstance(model, LatentTimeODE)
    return model


@contextmanager
def counted(field: nn.Module) -> Iterator[list[Tensor]]:
    """Record the times at which the field is called."""
    calls: list[Tensor] = []
    handle = field.register_forward_hook(lambda module, args, output: calls.append(args[0]))
    try:
        yield calls
    finally:
        handle.remove()


# -- prediction: one solve ----------------------------------------------------------------------------------------------------


class NarrowEncoder(nn.Module):
    """Gammas between 2.6 and 2.9 for every input (spread 0.5 %): the largest end-time lies in the last of the four steps."""

    def forward(self, x: Tensor) -> Tensor:
        log_alpha = torch.full_like(x[:, 0], 8.0)
        mean = 2.75 + 0.1 * torch.tanh(x[:, 0])
        return torch.stack([log_alpha, log_alpha - mean.log()], dim=1)


def alt_model(truncate: bool = True, **solver: Any) -> LatentTimeODE:
    """ALT-NODE whose largest end-time lies within the same step for any inputs and any number of samples."""
    parts = built("alt-node", VECTORS)
    end_time = AmortizedGammaTime(NarrowEncoder(), truncate=truncate)
    return LatentTimeODE(parts.stem, parts.field, parts.head, end_time, solver=SolverOptions(**solver))


@pytest.mark.parametrize("truncate", [True, False], ids=["truncated", "untruncated"])
def test_alt_prediction_is_one_solve_whatever_the_samples_and_the_batch(truncate: bool) -> None:
    """Four steps of Dopri5 are 25 calls of the field (6 n + 1), each on the whole batch, for every S and B."""
    model = alt_model(truncate)
    for samples, batch in ((1, 1), (1, 64), (10, 1), (10, 64), (100, 64)):
        with counted(model.field) as calls:
            p = model.predict(torch.randn(batch, 2), samples=samples)
        assert p.times.shape == (samples, batch)
        assert len(calls) == 25
        assert p.stats is not None
        assert p.stats.n_evaluations == 25


@pytest.mark.parametrize("name", ["uni-node", "lt-node", "lt-node-mixture", "alt-node"])
def test_more_samples_cost_no_more_evaluations(name: str) -> None:
    """At the same largest end-time, S = 3 and S = 300 lead to the same calls of the field."""
    model = built(name, VECTORS)
    x, counts = torch.randn(7, 2), []
    for samples in (3, 300):
        times = model.prediction_times(x, samples)
        times = times * (2.9 / times.max())
        with counted(model.field) as calls:
            model(x, times)
        counts.append(len(calls))
    assert counts[0] == counts[1]


class LargestTensor(TorchFunctionMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return out


def test_alt_prediction_needs_memory_of_order_samples_times_batch() -> None:
    """The largest tensor holds the S B states (width 32): doubling S or B doubles it, so there is no B^2 or S^2."""
    model = alt_model()

    def largest(samples: int, batch: int) -> int:
        with LargestTensor() as record:
            model.predict(torch.randn(batch, 2), samples=samples)
        return record.numel

    sizes = {(samples, batch): largest(samples, batch) for samples, batch in ((40, 30), (80, 30), (40, 60))}
    assert sizes == {(samples, batch): samples * batch * 32 for samples, batch in sizes}


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_alt_members_equal_separate_solves_per_input(preset: str) -> None:
    """Every member of every input agrees with a separate adaptive solve; both have tolerance 1e-4, so they agree to 2e-3."""
    model = built("alt-node", preset=preset, solver={"rtol": 1e-4, "atol": 1e-4}).eval()
    x = torch.randn(4, 1)
    model.finish_training(x, torch.zeros(4))
    p = model.predict(x, samples=5)
    assert len(p.times.unique()) == 20
    with torch.no_grad():
        for i in range(4):
            h = model.stem(x[i : i + 1])
            for s in range(5):
                state = ltnode.odesolve(model.field, h, p.times[s : s + 1, i], rtol=1e-4, atol=1e-4).states[0]
                torch.testing.assert_close(model.head(state)[0], p.outputs[s, i], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("steps", ["stored", "adaptive"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-9])
def test_statistics_are_the_calls_of_the_field(tolerance: float, steps: str) -> None:
    """n_evaluations equals the counted calls; at 1e-9 the prediction grid fails its check and is refined."""
    model = built("lt-node", VECTORS, solver={"rtol": tolerance, "atol": tolerance}).double()
    with counted(model.field) as calls:
        stats = model.predict(3 * torch.randn(20, 2, dtype=torch.float64), steps=steps).stats  # type: ignore[arg-type]
    assert stats is not None
    assert stats.n_evaluations == len(calls)
    if steps == "stored":
        assert (stats.n_refreshed > 0) == (tolerance == 1e-9)


def test_a_later_end_time_of_another_input_does_no_harm() -> None:
    """dh/dt = 0.32 h^3 from 1.25 diverges at t = 1: an input that ends at 0.3 must not be affected by one that ends at 2.8."""

    class Cubic(nn.Module):
        def forward(self, t: Tensor, h: Tensor) -> Tensor:
            return 0.32 * h**3

    class EarlyOrLate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            log_alpha = torch.full_like(x[:, 0], 5.0)
            return torch.stack([log_alpha, log_alpha - torch.where(x[:, 0] > 1, 0.3, 2.8).log()], dim=1)

    model = LatentTimeODE(nn.Identity(), Cubic(), nn.Linear(1, 2), AmortizedGammaTime(EarlyOrLate()))
    early, late = torch.tensor([[1.25]]), torch.tensor([[0.1]])
    alone = model.predict(early).outputs
    torch.testing.assert_close(model.predict(torch.cat([early, late])).outputs[:, :1], alone, rtol=1e-5, atol=1e-5)


def test_a_fixed_end_time_is_solved_for_once() -> None:
    """All members of a NODE are equal, so S changes only the shape."""
    model = built("node", VECTORS)
    x = torch.randn(5, 2)
    p = model.predict(x, samples=6)
    assert p.outputs.shape == (6, 5, 3)
    assert torch.equal(p.outputs, p.outputs[:1].expand(6, -1, -1))
    torch.testing.assert_close(p.epistemic, torch.zeros(5), rtol=0, atol=1e-6)


def test_quantile_times_are_the_posterior_quantiles() -> None:
    """At (s - 1/2)/S: half of the default posterior's mass lies below the median of an odd number of samples."""
    model = built("lt-node")
    times = model.prediction_times(torch.zeros(3, 1), samples=7)
    assert times.shape == (7,)
    levels = (torch.arange(7, dtype=torch.float64) + 0.5) / 7
    torch.testing.assert_close(model.end_time().cdf(times).double(), levels, rtol=0, atol=1e-5)


def test_outputs_are_differentiable_in_the_end_times() -> None:
    """d output / dT = head(field(T, h(T))) for a linear head; float64, tolerance that of the solve (1e-8)."""
    model = built("lt-node", VECTORS, solver={"rtol": 1e-9, "atol": 1e-9}).double()
    x, times = torch.randn(3, 2, dtype=torch.float64), torch.tensor([0.7, 1.9], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x, times).sum(), times)
    states = model.solve(model.initial_state(x), times.detach(), "adaptive").states
    slopes = [model.field(t, h) @ model.head.weight.T for t, h in zip(times.detach(), states, strict=True)]
    torch.testing.assert_close(gradient, torch.stack([s.sum() for s in slopes]), rtol=1e-5, atol=1e-5)


# -- training solves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uni-node", "lt-node", "alt-node"])
def test_training_grid_and_adaptive_training_agree(name: str) -> None:
    """The training grid and the literal solve of the paper agree: losses within 1e-2 at tolerance 1e-2, within 1e-5 at 1e-6."""
    for tolerance, allowed in ((1e-2, 1e-2), (1e-6, 1e-5)):
        model = built(name, VECTORS, solver={"rtol": tolerance, "atol": tolerance}).double()
        x, y = torch.randn(16, 2, dtype=torch.float64), torch.randint(3, (16,))
        times = model.training_times(16, seed=0, step=0)
        losses, gradients = [], []
        for training in ("kept", "adaptive"):
            model.solver = replace(model.solver, training=training)  # type: ignore[arg-type]
            model.zero_grad()
            loss = model.loss(x, y, times=times)
            loss.backward()
            losses.append(loss.item())
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        assert losses[0] == pytest.approx(losses[1], abs=allowed)
        difference = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
        assert difference.item() < 5 * allowed


@pytest.mark.parametrize("training", ["adaptive", "kept"])
def test_batch_statistics_move_by_the_replay_alone(training: str) -> None:
    """Per loss, num_batches_tracked of the field grows by 6 n + 1, the evaluations of the replay, and that of the stem by 1."""
    model = built("lt-node", preset="paper", solver={"training": training})
    x, y = torch.randn(32, 1), torch.randn(32)
    field = [m for m in model.field.modules() if isinstance(m, nn.BatchNorm1d)]
    stem = [m for m in model.stem.modules() if isinstance(m, nn.BatchNorm1d)]
    before = 0
    for step in range(3):
        times = model.training_times(32, seed=0, step=step)
        with counted(model.field) as calls:
            loss = model.loss(x, y, times=times)
        after = {int(m.num_batches_tracked) for m in field}  # type: ignore[arg-type]
        assert len(after) == 1
        grown = after.pop() - before
        before += grown
        # The calls of the replay come last and start at t = 0 again.
        replayed = max(m for m, t in enumerate(calls) if float(t) == 0.0)
        assert grown == len(calls) - replayed
        assert grown % 6 == 1
        assert {int(m.num_batches_tracked) for m in stem} == {step + 1}  # type: ignore[arg-type]
        loss.backward()
        assert {int(m.num_batches_tracked) for m in field} == {before}  # type: ignore[arg-type]


def test_a_loss_refused_for_its_input_leaves_statistics_alone() -> None:
    """Targets and times are checked before the network runs."""
    model = built("lt-node", preset="paper")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ltnode.InputError):
        model.loss(torch.randn(4, 1), torch.tensor([0.0, math.nan, 1.0, 2.0]))
    with pytest.raises(ltnode.InputError):
        model.loss(torch.randn(4, 1), torch.zeros(4), times=torch.zeros(2, 3))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("scheme", ["iid", "grid"])
@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node"])
def test_training_times_are_a_function_of_seed_and_step(name: str, scheme: str) -> None:
    """The times depend on the counters only, not on the global generator, and lie in the window."""
    model = built(name, VECTORS, objective={"scheme": scheme, "samples": 6})
    state = torch.get_rng_state()
    times = model.training_times(5, seed=1, step=2)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(10)
    assert torch.equal(model.training_times(5, seed=1, step=2), times)
    assert times.shape == ((6, 5) if name == "alt-node" else (6,))
    low, high = model.end_time.window
    assert bool(((times >= low) & (times <= high)).all())
    if name != "node":
        assert not torch.equal(model.training_times(5, seed=2, step=2), times)
        assert not torch.equal(model.training_times(5, seed=1, step=3), times)
    loss = model.loss(torch.randn(5, 2), torch.randint(3, (5,)), times=times)
    assert bool(torch.isfinite(loss))


@pytest.mark.parametrize("scheme", ["iid", "grid"])
@pytest.mark.parametrize("name", ["uni-node", "lt-node", "steer"])
def test_the_times_of_several_steps_are_those_of_each(name: str, scheme: str) -> None:
    """Times that are drawn for several steps have the row of every step, bit for bit."""
    model = built(name, VECTORS, objective={"scheme": scheme, "samples": 1 if name == "steer" else 6})
    ahead = model.training_times(1, seed=3, step=range(4, 9))
    assert torch.equal(ahead, torch.stack([model.training_times(1, seed=3, step=step) for step in range(4, 9)]))


@pytest.mark.parametrize("scheme", ["iid", "grid"])
def test_alt_training_times_follow_the_sample_index(scheme: str) -> None:
    """Permuting the batch permutes the columns, and a part of the batch has the same columns, so batches can be split."""
    model = built("alt-node", VECTORS, objective={"scheme": scheme})
    indices = torch.tensor([3, 0, 17, 40_000, 8, 2])
    times = model.training_times(6, seed=1, step=2, indices=indices)
    order = torch.randperm(6)
    assert torch.equal(model.training_times(6, seed=1, step=2, indices=indices[order]), times[:, order])
    assert torch.equal(model.training_times(2, seed=1, step=2, indices=indices[2:4]), times[:, 2:4])


@pytest.mark.parametrize("scheme", ["iid", "grid"])
def test_alt_training_times_of_different_samples_are_independent(scheme: str) -> None:
    """The S B times are all different and uniform: mean and variance within 5 standard errors."""
    model = built("alt-node", VECTORS, objective={"scheme": scheme, "samples": 10}).double()
    times = model.training_times(400, seed=0, step=0, indices=torch.arange(400))
    assert len(times.unique()) == times.numel()
    assert float(times.mean()) == pytest.approx(1.5, abs=5 * math.sqrt(0.75 / times.numel()))
    assert float(times.var()) == pytest.approx(0.75, abs=5 * math.sqrt(0.45 / times.numel()))
    first, second = times[0] - 1.5, times[1] - 1.5
    assert abs(float((first * second).mean())) < 0.75 * 5 / math.sqrt(400) + (0.1 if scheme == "grid" else 0.0)


def test_parameter_roles_separate_the_posterior() -> None:
    """Weights and posterior can have different learning rates."""
    lt, alt = built("lt-node"), built("alt-node")
    assert isinstance(lt.end_time, GammaTime)
    assert isinstance(alt.end_time, AmortizedGammaTime)
    assert {id(p) for p in lt.parameter_roles()["variational"]} == {id(lt.end_time.alpha), id(lt.end_time.beta)}
    assert {id(p) for p in alt.parameter_roles()["variational"]} == {id(p) for p in alt.end_time.encoder.parameters()}
    assert built("node").parameter_roles()["variational"] == []


# -- user-defined parts, augmentation, options --------------------------------------------------------------------------------


def test_any_modules_make_a_model() -> None:
    """User-defined stem, field and head, with a state of shape (B, 3, 4)."""

    class Rotate(nn.Module):
        def forward(self, t: Tensor, h: Tensor) -> Tensor:
            return torch.roll(h, 1, dims=-1) * torch.cos(t)

    head = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    stem = nn.Sequential(nn.Linear(5, 12), nn.Unflatten(1, (3, 4)))
    model = LatentTimeODE(stem, Rotate(), head, GammaTime())
    assert model.spec is None
    model.loss(torch.randn(6, 5), torch.randint(2, (6,))).backward()
    assert model.predict(torch.randn(6, 5)).probs.shape == (6, 2)


@pytest.mark.parametrize(("data", "width"), [(VECTORS, 8), (InputSpec((1, 12, 12), "classification", 3), 64)])
def test_augmentation_appends_zero_channels(data: InputSpec, width: int) -> None:
    """Field and head receive the added channels, which start at 0 and change along the trajectory."""
    model = built("lt-node", data, width=width, augment=3)
    x = torch.randn(4, *data.shape)
    h = model.initial_state(x)
    assert h.shape[1] == width + 3
    assert torch.equal(h[:, width:], torch.zeros_like(h[:, width:]))
    states = model.solve(h, torch.tensor([1.0]), "adaptive").states[0]
    assert states.shape == h.shape
    assert float(states[:, width:].detach().abs().max()) > 0
    model.loss(x, torch.randint(3, (4,))).backward()


def test_options_survive_the_description() -> None:
    """The rebuilt model has the same options, whether they were dataclasses, mappings or numbers."""
    objective = ObjectiveOptions(weighting="integral", kl_weight="elbo", samples=4, scheme="iid")
    model = built("lt-node", VECTORS, objective=objective, solver={"rtol": 1e-3, "method": "tsit5"}, width=9)
    again = build_from_spec(model.spec or {})
    assert isinstance(again, LatentTimeODE)
    assert again.objective == objective == model.objective
    assert again.solver == model.solver == SolverOptions(rtol=1e-3, method="tsit5")
    assert [p.shape for p in again.parameters()] == [p.shape for p in model.parameters()]


def test_images_may_have_real_targets() -> None:
    """Regression on images: one output, with learnt noise."""
    model = built("lt-node", InputSpec((1, 12, 12), "regression"), width=8)
    x = torch.randn(3, 1, 12, 12)
    model.loss(x, torch.randn(3)).backward()
    assert model.predict(x).mean.shape == (3,)


def test_the_paper_preset_is_the_published_experiment() -> None:
    """Density weights, iid times, no truncation, adaptive unclipped steps; the default is truncated and normalised."""
    paper, default = built("lt-node", "cifar10", "paper"), built("lt-node", "cifar10")
    assert paper.objective == ObjectiveOptions("density", 0.1, 10, "iid")
    assert built("alt-node", "cifar10", "paper").objective == ObjectiveOptions("density", 0.1, 1, "iid")
    assert built("lt-node", "synthetic", "paper").objective.kl_weight == 0.05
    assert paper.solver == SolverOptions(training="adaptive", clip_last=False)
    assert not paper.end_time.truncate
    assert default.end_time.truncate
    assert default.objective.weighting == "normalised"
    assert paper.end_time.window == (0.0, 3.0)
    assert built("node", "cifar10", "paper").end_time.window[1] == 1.0


def test_the_time_comes_first_in_a_vector_field() -> None:
    """[t, h] with t as column 0, shared or one per sample."""
    h = torch.randn(3, 2)
    assert torch.equal(prepend_time(torch.tensor(0.5), h), torch.cat([torch.full((3, 1), 0.5), h], dim=1))
    t = torch.tensor([0.1, 0.2, 0.3])
    assert torch.equal(prepend_time(t, h)[:, 0], t)
    field = TimeMLP(2)
    each = torch.cat([field(t[i], h[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(field(t, h), each)


@pytest.mark.parametrize("t", [torch.tensor(1.7), torch.tensor([0.0, 0.4, 1.3, 2.9])], ids=["shared", "per sample"])
def test_time_convolution_equals_a_concatenated_plane(t: Tensor) -> None:
    """TimeConv2d against a plain convolution of [t plane, h], t first; 1e-6 in float32."""
    layer = TimeConv2d(6)
    h = torch.randn(4, 6, 7, 5)
    plane = t.reshape(-1, 1, 1, 1).expand(4, 1, 7, 5)
    torch.testing.assert_close(layer(t, h), layer.conv(torch.cat([plane, h], dim=1)), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["uni-node", "lt-node", "alt-node"])
def test_random_end_times_are_the_same_on_every_device(name: str):
    """Draws on CUDA and on a CPU have the same levels; the parameters of the posteriors differ by float32 rounding."""
    model = build(name, "mnist", seed=0)
    x = torch.randn(8, 1, 28, 28)
    here = model.prediction_times(x, 10, "random", seed=3)
    there = model.cuda().prediction_times(x.cuda(), 10, "random", seed=3).cpu()
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4)
