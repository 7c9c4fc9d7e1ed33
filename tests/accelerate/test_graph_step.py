"""The captured training step: when and how it falls back to the eager step, and that it trains like it on CUDA."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from emulated_graphs import Idle
from torch import Tensor, nn
from training.tiny import tiny_config, tiny_data, tiny_model

import ltnode
from ltnode.accelerate import plan
from ltnode.accelerate.flat_sgd import FlatSGD
from ltnode.accelerate.graph_step import GraphStep
from ltnode.accelerate.plan import plan_step, unsupported_reason_capture
from ltnode.accelerate.recorder import CaptureError
from ltnode.accelerate.step import AcceleratedStep, accelerated_step
from ltnode.errors import ConfigError
from ltnode.models import InputSpec, Model, build, execution
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.training import RunStatus, TrainConfig
from ltnode.training.step import make_optimizers

SGD = TrainConfig(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)


def learnable_batch(step: int, device: str, size: int = 64) -> Batch:
    """Random images whose labels follow from their first pixels, so that two trainings learn the same thing."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 1, 28, 28, generator=generator)
    y = x.flatten(1)[:, :100].reshape(size, 10, 10).mean(dim=2).argmax(dim=1)
    return Batch(x.to(device), y.to(device), torch.arange(size, device=device), step)


def captured(precision: str, fused: bool) -> GraphStep:
    model = build("lt-node", "mnist", seed=0).to("cuda").train()
    return GraphStep(model, make_optimizers(model, SGD), StepSettings(precision, SGD.seed, 1000), fused)


def eager_step(model: Model, config: TrainConfig) -> EagerStep:
    return EagerStep(model, make_optimizers(model, config), StepSettings(config.precision, config.seed, 1000), check=True)


@pytest.mark.parametrize(
    ("model", "data", "config", "reason"),
    [
        ("lt-node", "mnist", SGD, "CUDA"),
        ("lt-node", "synthetic", SGD, "CUDA"),
    ],
)
def test_a_cpu_trains_eagerly(model: str, data: str, config: TrainConfig, reason: str):
    """Without CUDA ``auto`` uses the eager step, and a request for a graph is refused with the reason."""
    built = build(model, data, seed=0)
    example = torch.zeros(1, *built.spec["input"]["shape"])
    eager = eager_step(built, config)
    assert accelerated_step(eager, example) is eager
    for requested in ("graph", "fused"):
        with pytest.raises(ConfigError, match=reason):
            accelerated_step(eager, example, requested)


def test_what_cannot_be_captured_has_a_reason():
    """Fields with dropout, optimisers that decide on the host, and shared batches have separate reasons, on any device."""
    cuda = torch.device("cuda")
    paper = build("lt-node", "synthetic", "paper", seed=0)  # with BatchNorm
    assert unsupported_reason_capture(paper, make_optimizers(paper, SGD), cuda) is None
    plain = build("lt-node", "mnist", seed=0)
    for optimizer in ("sgd", "adam", "adamw"):
        assert unsupported_reason_capture(plain, make_optimizers(plain, SGD.replace(optimizer=optimizer)), cuda) is None
    lbfgs = {"main": torch.optim.LBFGS(plain.parameters())}
    assert "LBFGS" in str(unsupported_reason_capture(plain, lbfgs, cuda))
    sgd = make_optimizers(plain, SGD)
    assert "several processes" in str(unsupported_reason_capture(plain, sgd, cuda, shared_batch=True))
    plain.head.append(nn.Dropout(0.5))
    assert unsupported_reason_capture(plain, sgd, cuda) is None
    plain.field.add_module("drop", nn.Dropout(0.5))
    assert "dropout" in str(unsupported_reason_capture(plain, sgd, cuda))


def test_a_plan_says_how_steps_are_computed_and_why_not_faster():
    """A plan names its mode and the reason for not being faster; the device need not exist."""
    cuda, model = torch.device("cuda"), build("lt-node", InputSpec((2,), "classification", 3), seed=0)
    optimizers, example = make_optimizers(model, SGD), torch.zeros(1, 2)
    planned = plan_step(model, optimizers, cuda, example)
    with_triton = find_spec("triton") is not None
    assert planned.mode == ("compiled" if with_triton else "captured") and "TimeMLP" in str(planned)
    assert planned.compile == ("later" if with_triton else "never")
    model.field.register_forward_hook(lambda *_: None)
    hooked = plan_step(model, optimizers, cuda, example)
    assert hooked.mode == "captured" and ("hook" if with_triton else "Triton") in str(hooked)
    with pytest.raises(ConfigError, match="accelerate = 'compiled' is not possible"):
        plan_step(model, optimizers, cuda, example, "compiled")
    assert plan_step(model, optimizers, cuda, example, "graph").mode == "captured"
    assert str(plan_step(model, optimizers, cuda, example, "off")) == "training runs eagerly: accelerate = 'off'"
    assert "CUDA graphs need CUDA" in str(plan_step(model, optimizers, torch.device("cpu"), example))
    with pytest.raises(ConfigError, match="accelerate = 'fused' is not possible: the field is a TimeMLP"):
        plan_step(model, optimizers, cuda, example, "fused")


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "fused", "bound"), [("fp32", True, 0.01), ("tf32", False, 0.02), ("bf16", True, 0.05)])
def test_captured_training_follows_the_reference(precision: str, fused: bool, bound: float):
    """Over 200 steps on the same batches and end-times, every loss agrees within tolerance (1e-2) and rounding."""
    step = captured(precision, fused)
    reference = build("lt-node", "mnist", seed=0).to("cuda").train()
    optimizer = make_optimizers(reference, SGD)["main"]
    for i in range(200):
        batch = learnable_batch(i, "cuda")
        times = reference.training_times(len(batch.y), SGD.seed, i, batch.indices)
        with execution.using(execution.REFERENCE):
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
    """On a grid that is far too coarse, weights, posterior and momentum stay bit for bit, and the update is counted as masked."""
    step = captured("fp32", fused)
    for i in range(4):
        step(learnable_batch(i, "cuda"))
    torch.cuda.synchronize()
    before = [p.detach().clone() for p in step.optimizer_step.parameters]
    momentum = [step.optimizer.state[p]["momentum_buffer"].clone() for p in step.optimizer_step.parameters]
    with torch.no_grad():  # a field a hundred times as fast, for which the training grid is too coarse
        step.model.field.norm3.weight.mul_(100.0)
    fast = [p.detach().clone() for p in step.optimizer_step.parameters]
    step(learnable_batch(4, "cuda"))
    torch.cuda.synchronize()
    assert step.counts()["masked_updates"] == 1
    assert all(torch.equal(a, b.detach()) for a, b in zip(fast, step.optimizer_step.parameters, strict=True))
    kept = [step.optimizer.state[p]["momentum_buffer"] for p in step.optimizer_step.parameters]
    assert all(torch.equal(a, b) for a, b in zip(momentum, kept, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, fast, strict=True))  # the change above had an effect
    for i in range(5, 12):  # a few steps later the failure is noticed, a new grid is searched, and training continues
        step(learnable_batch(i, "cuda"))
    assert step.policy.grid.n_searches >= 2


# -- parts that cannot be captured -------------------------------------------------------------------------------------------


class Watchful(nn.Module):
    """A part that leaves traces: it calls ``watch`` in every pass, counts passes in a buffer and draws random numbers."""

    def __init__(self, layer: nn.Module, watch: Any) -> None:
        super().__init__()
        self.layer, self.watch = layer, watch
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, *given: Tensor) -> Tensor:
        self.watch(given[-1])
        self.calls += 1
        h = given[-1]
        return self.layer(h + 1e-3 * torch.randn_like(h) if self.training else h)


def watched_model(field: Any = None, head: Any = None) -> ltnode.LatentTimeODE:
    """Return a small model with user-defined parts, whose field and head call the given functions in every pass."""

    def nothing(h: Tensor) -> None:
        pass

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    return ltnode.LatentTimeODE(
        nn.Linear(1, 6),
        Watchful(layers, field or nothing),
        Watchful(nn.Linear(6, 1), head or nothing),
        ltnode.GammaTime(),
        "regression",
    )


class EmulatedCapture:
    """Emulates the parts of torch.cuda that `GraphStep._capture` uses, including how torch behaves when a capture breaks.

    Passes run immediately and leave their traces; a broken capture raises a second error on leaving and does not restore the
    stream.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callers = self.stream = Idle()
        self.mode, self.recording, self.breaks_on_leaving = 0, False, False
        fakes = {
            "CUDAGraph": object,
            "Stream": lambda device, priority=0: Idle(),
            "Event": Idle,
            "current_stream": lambda: self.stream,
            "stream": self.on,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "synchronize": lambda: None,
            "graph": self.capture,
            "graph_pool_handle": lambda: (0, 1),
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(plan, "unsupported_reason_capture", lambda *_: None)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self, graph: Any, pool: Any = None, stream: Any = None, **options: Any) -> Iterator[None]:
        before, self.stream, self.recording = self.stream, stream, pool is not None
        try:
            yield
        except Exception as error:
            raise RuntimeError("operation failed due to a previous error during capture") from error
        finally:
            was_recording, self.recording = self.recording, False
        if was_recording and self.breaks_on_leaving:
            raise RuntimeError("unjoined work")
        self.stream = before

    def wait(self, h: Tensor) -> None:
        """Wait for the device, as .item() does."""
        if self.recording:
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")
        if self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    def wait_unseen(self, h: Tensor) -> None:
        """Wait for the device without torch's knowledge, as some libraries do."""
        if self.recording:
            self.wait(h)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedCapture:
    return EmulatedCapture(monkeypatch)


def own_config(**changes: Any) -> TrainConfig:
    return tiny_config(**{"momentum": 0.9, "accelerate": "auto", **changes})


@pytest.mark.no_typecheck  # an emulated stream is not a torch.cuda.Stream
@pytest.mark.parametrize(
    ("part", "watch", "reason"),
    [
        ("field", "wait", "called a synchronizing CUDA operation"),
        ("head", "wait", "called a synchronizing CUDA operation"),
        ("field", "wait_unseen", "operation not permitted when stream is capturing"),
        ("head", "wait_unseen", "operation not permitted when stream is capturing"),
        ("nothing", "", "unjoined work"),
    ],
)
def test_a_step_that_cannot_be_captured_trains_as_if_nobody_had_tried(
    part: str, watch: str, reason: str, emulated: EmulatedCapture, caplog: pytest.LogCaptureFixture
):
    """Weights, buffers, random numbers and losses of ``auto`` are those of ``off``, bit for bit, and one line says why.

    The emulated passes before the failure really run, so an unmasked update, a momentum, a counter or a random number that they
    leave behind would be noticed.
    """
    watches = {} if part == "nothing" else {part: getattr(emulated, watch)}
    emulated.breaks_on_leaving = part == "nothing"
    reference = ltnode.fit(watched_model(**watches), tiny_data(), own_config(accelerate="off"))
    with caplog.at_level(logging.INFO, "ltnode"):
        run = ltnode.fit(watched_model(**watches), tiny_data(), own_config())
    assert run.status is RunStatus.COMPLETE
    expected = reference.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in run.model.state_dict().items())
    assert [line["loss"] for line in run.history] == [line["loss"] for line in reference.history]
    assert {(line["masked_updates"], line["grid_searches"]) for line in run.history} == {(0, 1)}
    said = [record for record in caplog.records if "runs eagerly" in record.message]
    assert len(said) == 1 and said[0].levelno == logging.WARNING
    assert "from step 0 on" in said[0].message and f"({reason})" in said[0].message
    assert emulated.stream is emulated.callers and emulated.mode == 0


@pytest.mark.no_typecheck
@pytest.mark.parametrize("watch", ["wait", "wait_unseen"])
def test_a_wish_that_cannot_be_met_stops_the_run_with_the_reason(watch: str, emulated: EmulatedCapture, tmp_path: Any):
    """``graph`` does not fall back; the run can be resumed with ``auto`` and ends as if ``auto`` had been requested at first."""
    watched = {"field": getattr(emulated, watch)}
    with pytest.raises(ConfigError, match=r"'graph' is not possible: .*cannot record.*use 'auto' or 'off'"):
        ltnode.fit(watched_model(**watched), tiny_data(), own_config(accelerate="graph"), out=tmp_path / "run")
    run = ltnode.fit(watched_model(**watched), tiny_data(), own_config(), out=tmp_path / "run", resume=True)
    reference = ltnode.fit(watched_model(**watched), tiny_data(), own_config(accelerate="off"))
    assert run.history[-1]["loss"] == reference.history[-1]["loss"]


@pytest.mark.no_typecheck
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("tried to allocate 2 GiB"), RuntimeError("CUDA error: out of memory")])
def test_want_of_memory_is_not_taken_for_a_part_that_cannot_be_captured(error: RuntimeError, emulated: EmulatedCapture):
    """Out-of-memory errors are raised unchanged, and the stream is restored; a fallback would hide them."""

    def allocate(h: Tensor) -> None:
        if emulated.recording:
            raise error

    with pytest.raises(type(error), match=str(error)):
        ltnode.fit(watched_model(field=allocate), tiny_data(), own_config())
    assert emulated.stream is emulated.callers


@pytest.mark.no_typecheck
def test_a_wrong_part_is_named_as_without_acceleration(emulated: EmulatedCapture):
    """An error that the eager step raises as well is raised with the same message."""
    model = watched_model()
    model.head = nn.Linear(5, 1)
    with pytest.raises(ltnode.InputError, match="the head does not accept a batch"):
        ltnode.fit(model, tiny_data(), own_config())


class Scripted:
    """A captured step that does its update eagerly, until the batch that it cannot capture."""

    def __init__(self, eager: EagerStep, until: int) -> None:
        self.eager, self.until, self.asked, self.released = eager, until, 0, False
        self.ready = True

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        self.asked += 1
        if batch.step >= self.until:
            raise CaptureError("a reason")
        return self.eager(batch)

    def counts(self) -> dict[str, int]:
        return {"masked_updates": 7}

    def release(self) -> None:
        self.released = True


@pytest.mark.no_typecheck
def test_a_later_capture_may_fail_too():
    """After five captured updates a capture fails: every batch is still used for one update, and the counters stay in the log."""

    def batches() -> Iterator[Batch]:
        x, y = tiny_data().train.x[:16], tiny_data().train.y[:16]
        return (Batch(x, y, torch.arange(16), step) for step in range(9))

    eager, alone = eager_step(tiny_model(), own_config()), eager_step(tiny_model(), own_config())
    scripted = Scripted(eager, until=5)
    step = AcceleratedStep(scripted, eager)  # type: ignore[arg-type]
    for batch, again in zip(batches(), batches(), strict=True):
        assert torch.equal(step(batch)["loss"], alone(again)["loss"])
    assert scripted.asked == 6 and scripted.released
    assert step.counts() == {"masked_updates": 7}


@pytest.mark.parametrize("steps_before", [0, 3])
def test_the_momentum_of_a_captured_step_serves_the_eager_one(steps_before: int):
    """Replacing the momentum of SGD by views of one flat buffer does not change the following steps."""
    models = [tiny_model(), tiny_model()]
    optimizers = [make_optimizers(model, own_config(nesterov=True))["main"] for model in models]
    for step in range(steps_before + 3):
        if step == steps_before:
            FlatSGD(optimizers[0])
        for model, optimizer in zip(models, optimizers, strict=True):
            generator = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def read_always(h: Tensor) -> None:
    h.norm().item()


def read_while_recording(h: Tensor) -> None:
    if h.is_cuda and torch.cuda.is_current_stream_capturing():
        h.norm().item()


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["field", "head"])
@pytest.mark.parametrize("watch", [read_always, read_while_recording])
def test_on_cuda_a_part_that_reads_values_trains_eagerly(part: str, watch: Any, caplog: pytest.LogCaptureFixture):
    """``auto`` ends like ``off`` (sums on a GPU differ in order: 1e-3), ``graph`` says why it cannot, and CUDA stays usable.

    Reading a value only during the recording breaks a real capture, after which torch has to be repaired: the stream, the random
    numbers, and a later capture.
    """
    chosen = own_config(device="cuda")
    stream = torch.cuda.current_stream()
    reference = ltnode.fit(watched_model(**{part: watch}), tiny_data(), chosen.replace(accelerate="off"))
    with caplog.at_level(logging.WARNING, "ltnode"):
        run = ltnode.fit(watched_model(**{part: watch}), tiny_data(), chosen)
    assert sum("runs eagerly from step 0 on" in message for message in caplog.messages) == 1
    assert [line["loss"] for line in run.history] == pytest.approx([line["loss"] for line in reference.history], rel=1e-3)
    assert int(run.model.get_buffer("field.calls")) == int(reference.model.get_buffer("field.calls"))
    with pytest.raises(ConfigError, match="'graph' is not possible"):
        ltnode.fit(watched_model(**{part: watch}), tiny_data(), chosen.replace(accelerate="graph"))
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.get_sync_debug_mode() == 0
    assert bool(torch.isfinite(torch.randn(8, device="cuda")).all())
    step = captured("fp32", fused=False)
    losses = [float(step(learnable_batch(i, "cuda"))["loss"]) for i in range(6)]
    assert all(torch.isfinite(torch.tensor(losses)))
