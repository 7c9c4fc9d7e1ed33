"""Captured steps with compiled layers: the same losses and gradients as the layers themselves, and when they are used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulated_graphs import emulate, floats
from torch import Tensor, nn

from ltnode.accelerate import compile_policy, compiled, graph_step
from ltnode.accelerate.compile_policy import CompilePolicy
from ltnode.accelerate.compiled import mixed_states, unsupported_reason_compile
from ltnode.accelerate.fused import stage_weights
from ltnode.accelerate.graph_step import GraphStep
from ltnode.accelerate.recorder import Recorder
from ltnode.accelerate.step import AcceleratedStep
from ltnode.endtime import AmortizedGammaTime, EndTime, GammaTime
from ltnode.errors import ConfigError
from ltnode.models import LatentTimeODE
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.ode.replay import replay
from ltnode.ode.step import take_step
from ltnode.ode.tableau import get_tableau
from ltnode.ode.trace import no_trace
from ltnode.training import TrainConfig
from ltnode.training.step import make_averages

CONFIG = TrainConfig(optimizer="adam", lr=0.01, seed=3, averaging=0.9, clip_norm=0.5)


class Convolutions(nn.Module):
    """A field of a user: states are images, and time enters as a shift."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return self.net(h) + t.sin()


class Attention(nn.Module):
    """A field of a user: states are sequences."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(h)).chunk(3, dim=-1)
        return self.out(nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


def model_of(kind: str, per_input: bool = False) -> tuple[LatentTimeODE, tuple[int, ...]]:
    torch.manual_seed(0)
    # BatchNorm of the inputs: behind other layers it would make gradients 0 but for rounding, which Adam makes steps of.
    field, stem, shape = {
        "mlp": (_Timeless(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))), nn.BatchNorm1d(6), (6,)),
        "convolutions": (Convolutions(), nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3, padding=1)), (1, 5, 5)),
        "attention": (Attention(), nn.BatchNorm1d(7), (7, 8)),
    }[kind]
    size = {"mlp": 6, "convolutions": 100, "attention": 56}[kind]
    end_time: EndTime = GammaTime()
    if per_input:
        end_time = AmortizedGammaTime(nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 2)))
    head = nn.Sequential(nn.Flatten(), nn.Linear(size, 3))
    return LatentTimeODE(stem, field, head, end_time, "classification").train(), shape


class _Timeless(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return self.net(h)


def batch(step: int, shape: tuple[int, ...], size: int = 6, device: str = "cpu") -> Batch:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, *shape, generator=generator)
    y = x.flatten(1)[:, :3].argmax(dim=1)
    return Batch(x.to(device), y.to(device), torch.arange(size, device=device) + 7 * step, step)


def settings(config: TrainConfig = CONFIG) -> StepSettings:
    return StepSettings(config.precision, config.seed, 100, config.clip_norm)


def optimizers_of(model: LatentTimeODE, config: TrainConfig) -> dict[str, torch.optim.Optimizer]:
    """Adam with an eps above the rounding of gradients that are 0, such as those of biases of keys."""
    return {"main": torch.optim.Adam(model.parameters(), lr=config.lr, eps=1e-3)}


def steps_of(model: LatentTimeODE, config: TrainConfig, when: graph_step.Compile) -> AcceleratedStep:
    optimizers = optimizers_of(model, config)
    averages = make_averages(optimizers, config)
    captured = GraphStep(model, optimizers, settings(config), False, averages=averages, compile=when)
    return AcceleratedStep(captured, EagerStep(model, optimizers, settings(config), averages=averages))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Emulated graphs, whose layers are traced as for compilation (without a break) and then run by torch."""
    emulate(monkeypatch)
    compile, traced = torch.compile, []

    def trace_only(function: Any, **options: Any) -> Any:
        assert not options["dynamic"] and options["fullgraph"]
        traced.append(function.__name__)
        return compile(function, backend="eager", dynamic=False, fullgraph=True)

    monkeypatch.setattr(torch, "compile", trace_only)
    monkeypatch.setattr(graph_step, "milliseconds", trial(iter(lambda: 1.0, None)))
    return traced


def trial(times: Iterator[float]) -> Any:
    """Measuring a graph by a replay that updates nothing; the times are given."""

    def measured(graph: Any, model: LatentTimeODE, recorder: Recorder) -> float:
        recorder.enabled.fill_(False)
        with no_trace(model, recorder.enabled.device):
            graph.replay()
        recorder.enabled.fill_(True)
        return next(times)

    return measured


@pytest.mark.no_typecheck  # an emulated graph is not a torch.cuda.CUDAGraph
@pytest.mark.parametrize("per_input", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "convolutions", "attention"])
def test_losses_weights_and_statistics_are_those_of_the_eager_step(kind: str, per_input: bool, emulated: list[str]):
    """With Adam, clipped gradients, averages and BatchNorm, five steps agree up to the order of sums (1e-4).

    End-times are shared, or one set per input. Steps whose replays are only measured leave no trace.
    """
    (reference, shape), (model, _) = model_of(kind, per_input), model_of(kind, per_input)
    optimizers = optimizers_of(reference, CONFIG)
    averages = make_averages(optimizers, CONFIG)
    eager, step = EagerStep(reference, optimizers, settings(), averages=averages), steps_of(model, CONFIG, "now")
    for number in range(5):
        expected, got = eager(batch(number, shape)), step(batch(number, shape))
        assert floats(got) == pytest.approx(floats(expected), rel=1e-4, abs=1e-5), number
    assert {"before", "step", "after"} <= set(emulated)
    for (name, a), b in zip(reference.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=name)
    for a, b in zip(reference.stem.buffers(), model.stem.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 40])
@pytest.mark.parametrize("per_sample", [False, True])
def test_mixed_states_are_the_dense_output(steps: int, per_sample: bool):
    """Few products are written out and many are a matrix product; both give the states of `replay` to 1e-5."""
    field, tableau = Convolutions(), get_tableau("dopri5")
    h, edges = torch.randn(3, 4, 5, 5), torch.linspace(0, 3, steps + 1, dtype=torch.float64)
    times = torch.rand(10, 3) * 3 if per_sample else torch.rand(10) * 3
    with torch.no_grad():
        expected = replay(field, tableau, h, edges.tolist(), times, 1e-2, 1e-2).states
        y, stages = h, [field(torch.tensor(0.0), h)]
        for left, right in zip(edges[:-1].float(), edges[1:].float(), strict=True):
            taken = take_step(field, tableau, left, right - left, y, stages[-1])
            y = taken.y
            stages.extend(taken.stages[1:])
        weights = stage_weights(tableau, edges, times)[..., : len(stages)]
        torch.testing.assert_close(mixed_states(h, stages, weights), expected, rtol=1e-5, atol=1e-5)


def test_compilation_waits_until_it_is_worthwhile(monkeypatch: pytest.MonkeyPatch):
    """Only time spent on a batch size counts towards it; each size has one attempt; "never" and "now" do not wait."""
    now = [0.0]
    monkeypatch.setattr(compile_policy.time, "monotonic", lambda: now[0])
    policy = CompilePolicy("later")
    for _ in range(6):  # 36 steps of a size, and one of another, as in epochs with a smaller last batch
        for _ in range(6):
            assert not policy.due(64)
            now[0] += 0.5
        assert not policy.due(10)
        now[0] += 0.5
    while not policy.due(64):
        now[0] += 0.5
    assert now[0] == pytest.approx(21.0 + 5.5)  # six times 2.5 s between steps of this size, and the rest without a break
    policy.tried(64)
    policy.choose(64)
    assert not policy.due(64) and policy.chosen_for(64) and not policy.chosen_for(10)
    assert not CompilePolicy("never").due(64) and CompilePolicy("now").due(64)


def wrong_states(h: Tensor, stages: Any, weights: Tensor) -> Tensor:
    """States that are not those of the solve, but depend on everything."""
    return 9 * mixed_states(h, stages, weights)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("times", "outputs", "words"),
    [({"layers": 1.0, "compiled": 2.0}, None, "2 ms a step instead of 1 ms"), ({}, wrong_states, "they compute the loss")],
)
def test_what_is_slower_or_differs_is_not_kept(
    times: dict[str, float], outputs: Any, words: str, emulated: list[str], monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    """A compiled step that is slower, or computes another loss, is dropped with a reason, and training goes on as without."""
    monkeypatch.setattr(compile_policy, "_WORTHWHILE", -1.0)
    order = iter([times.get("layers", 2.0), times.get("compiled", 1.0)])
    monkeypatch.setattr(graph_step, "milliseconds", trial(order))
    if outputs is not None:
        monkeypatch.setattr(compiled, "mixed_states", outputs)
    (reference, shape), (model, _) = model_of("mlp"), model_of("mlp")
    plain, step = steps_of(reference, CONFIG, "never"), steps_of(model, CONFIG, "later")
    with caplog.at_level(logging.INFO, logger="ltnode"):
        for number in range(4):
            assert floats(step(batch(number, shape))) == floats(plain(batch(number, shape)))
    assert words in caplog.text
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), model.parameters(), strict=True))


class Undecided(nn.Module):
    """A field that can be captured but not traced: it asks for the class of a tensor by name in a way that breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.layer(h)


@pytest.mark.no_typecheck
def test_a_field_that_cannot_be_compiled_trains_captured_or_is_an_error_on_request(emulated: list[str], caplog: Any):
    """The reason is in the log; with accelerate = "compiled" it is an error."""
    config = CONFIG.replace(averaging=None)
    models = [model_of("mlp") for _ in range(3)]
    for model, _ in models:
        model.field = Undecided()
    (first, shape), (second, _), (third, _) = models
    first.load_state_dict(second.state_dict())
    plain, step = steps_of(first, config, "never"), steps_of(second, config, "later")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(compile_policy, "_WORTHWHILE", -1.0)
    with caplog.at_level(logging.INFO, logger="ltnode"):
        for number in range(4):
            assert floats(step(batch(number, shape))) == floats(plain(batch(number, shape)))
    monkey.undo()
    assert "could not be compiled" in caplog.text
    asked = steps_of(third, config, "now")
    asked(batch(0, shape))
    with pytest.raises(ConfigError, match="accelerate = 'compiled' is not possible"):
        asked(batch(1, shape))


def test_hooks_and_other_methods_have_reasons(monkeypatch: pytest.MonkeyPatch):
    """A compiled field would not call its hooks, and the cut into steps needs a method whose stages chain."""
    monkeypatch.setattr(compiled, "find_spec", lambda name: True)
    model, _ = model_of("mlp")
    assert unsupported_reason_compile(model, get_tableau("dopri5")) is None
    assert "rk4" in str(unsupported_reason_compile(model, get_tableau("rk4")))
    model.field.register_forward_hook(lambda *_: None)
    assert "hook" in str(unsupported_reason_compile(model, get_tableau("dopri5")))
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert "Triton" in str(unsupported_reason_compile(model_of("mlp")[0], get_tableau("dopri5")))


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 0.01), ("bf16", 0.05)])
@pytest.mark.parametrize("kind", ["mlp", "convolutions", "attention"])
def test_compiled_training_follows_the_reference(kind: str, precision: str, bound: float):
    """Over 200 steps with Adam, every loss agrees with that of the eager reference within tolerance and rounding."""
    config = CONFIG.replace(precision=precision, lr=1e-3, clip_norm=None, averaging=None)
    (reference, shape), (model, _) = model_of(kind), model_of(kind)
    reference.cuda(), model.cuda()
    eager = EagerStep(reference, optimizers_of(reference, config), settings(config), reference=True)
    step = steps_of(model, config, "now")
    for number in range(200):
        b = batch(number, shape, 64, "cuda")
        expected, got = float(eager(b)["loss"]), float(step(b)["loss"])
        assert got == pytest.approx(expected, rel=bound), number
    assert step.capturing and step.counts()["masked_updates"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("when", ["never", "now"])
def test_dropout_draws_anew_in_every_replay(when: graph_step.Compile):
    """With a learning rate of 0, three steps on one batch have three losses; dropout leaves no other trace."""
    model, shape = model_of("mlp")
    model.head.insert(1, nn.Dropout(0.5))
    model.cuda()
    config = CONFIG.replace(lr=0.0, averaging=None)
    step, examples = steps_of(model, config, when), batch(0, shape, 64, "cuda")
    losses = [float(step(examples)["loss"]) for _ in range(5)]
    assert len(set(losses[1:])) == 4 and step.capturing
