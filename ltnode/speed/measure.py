"""Time training steps in every supported way, torchdiffeq, and a prediction, all in one run.

The inputs are random numbers, so no data set is needed. Times are medians after a warm-up; timings are noisy, so compare ratios.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import torch

from ltnode.accelerate.plan import Accelerate, plan_step, unsupported_reason_capture
from ltnode.device import Precision, product_precision
from ltnode.models import LatentTimeODE, Model
from ltnode.models.step import Batch
from ltnode.ode import Stats
from ltnode.speed.subject import Subject
from ltnode.training import TrainConfig
from ltnode.training.provenance import device_name, source_state
from ltnode.training.step import make_averages, make_optimizers, make_step

_WARM_UPS = 3
_EXAMPLES = 50_000
"""Size of the training set in the objective."""


@dataclass(frozen=True)
class Timing:
    """Median time of one variant (``way``) of a ``"training step"`` or ``"prediction"``, its solver work and peak memory.

    Steps and evaluations (of the forward pass) are None if the solver does not report them; the memory is None on a CPU.
    """

    work: str
    way: str
    milliseconds: float
    steps: int | None
    evaluations: int | None
    peak_mb: float | None


@dataclass(frozen=True)
class Settings:
    """How it is measured: with ``batch`` inputs, ``samples`` end-times per prediction, and so many repeats."""

    batch: int
    samples: int
    device: torch.device
    repeats: int


def measure(subject: Subject, settings: Settings) -> Iterator[Timing]:
    """Measure training steps in every supported way, torchdiffeq if it is installed, and a prediction."""
    bench = _Bench(subject, settings)
    yield from bench.training_steps()
    if importlib.util.find_spec("torchdiffeq") is not None and bench.has_shared_times:
        yield bench.torchdiffeq()
    yield bench.prediction()


def why_not_faster(subject: Subject, settings: Settings) -> str:
    """Return what the fastest way is on this device, with the reason why there is no faster one."""
    bench = _Bench(subject, settings)
    model = bench.model()
    return str(plan_step(model, make_optimizers(model, subject.config), settings.device, bench.batch().x[:1]))


def record(subject: Subject, settings: Settings, timings: list[Timing]) -> dict[str, Any]:
    """Return settings and timings as JSON, with the machine and the source version."""
    machine = {"device": device_name(settings.device), "torch": torch.__version__, **source_state()}
    about = {"subject": subject.title, **asdict(settings), **machine}
    return {**about, "tolerance": 0.01, "timings": [asdict(timing) for timing in timings]}


class _Bench:
    """The ways in which a subject can be measured."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self._subject, self._settings = subject, settings
        self._config = subject.config.replace(device=str(settings.device), batch_size=settings.batch)

    @property
    def has_shared_times(self) -> bool:
        """Whether all inputs have the same end-times, which torchdiffeq needs."""
        model = self._subject.model({})
        return isinstance(model, LatentTimeODE) and not model.end_time.amortized

    def model(self, **solver: str) -> Model:
        """Build the model on the device."""
        return self._subject.model(solver).to(self._settings.device)

    def batch(self) -> Batch:
        """Draw inputs and targets."""
        n, device, generator = self._settings.batch, self._settings.device, torch.Generator().manual_seed(0)
        x = torch.randn(n, *self._subject.shape, generator=generator)
        if self._subject.n_classes is None:
            y = torch.randn(n, generator=generator)
        else:
            y = torch.randint(0, self._subject.n_classes, (n,), generator=generator)
        return Batch(x.to(device), y.to(device), torch.arange(n, device=device), 0)

    def training_steps(self) -> Iterator[Timing]:
        """Measure the reference, the training grid, and what can be captured."""
        plain, eager = self.model(), self._config.replace(accelerate="off")
        if isinstance(plain, LatentTimeODE):
            yield self._step("reference: grid search, then replay", eager, training="adaptive")
            yield self._step("training grid, eager", eager, training="kept")
        else:
            yield self._step("eager", eager)
        optimizers, device = make_optimizers(plain, eager), self._settings.device
        if unsupported_reason_capture(plain, optimizers, device) is not None:
            return
        ways: dict[Accelerate, str] = {"graph": "captured layers"}
        fastest = plan_step(plain, optimizers, device, self.batch().x[:1]).mode
        if fastest == "compiled":
            ways["compiled"] = "captured, layers compiled"
        elif fastest == "fused":
            ways["fused"] = "captured, fused kernels"
        for precision in get_args(Precision):
            for way, name in ways.items():
                yield self._step(f"{name}, {precision}", self._config.replace(accelerate=way, precision=precision))

    def _step(self, way: str, config: TrainConfig, **solver: str) -> Timing:
        model, batch = self.model(**solver).train(), self.batch()
        optimizers = make_optimizers(model, config)
        step = make_step(model, optimizers, config, _EXAMPLES, averages=make_averages(optimizers, config), example=batch.x[:1])
        number = iter(range(10**9))
        with product_precision(config.precision):

            def work() -> None:
                step(replace(batch, step=next(number)))

            work()
            return _timed("training step", way, work, self._settings, lambda: model.solve_stats)

    def torchdiffeq(self) -> Timing:
        """Measure the same step with the solver of torchdiffeq and direct back-propagation."""
        import torchdiffeq  # type: ignore[import-untyped]

        model, batch = self.model().train(), self.batch()
        assert isinstance(model, LatentTimeODE)
        optimizer = make_optimizers(model, self._config)["main"]
        low, high = model.end_time.window
        ends = torch.linspace(low, high, model.objective.samples + 1, device=self._settings.device)[1:]
        if high <= low:
            ends = torch.full((1,), high, device=self._settings.device)
        calls = [0]
        counting = model.field.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))

        def work() -> None:
            times = torch.cat([ends.new_zeros(1), ends])
            start = model.initial_state(batch.x)
            states = torchdiffeq.odeint(model.field, start, times, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
            optimizer.zero_grad()
            posterior = model.posterior_terms(batch.x, ends)
            model.compose_loss(model.outputs_at(states), batch.y, ends, posterior, _EXAMPLES).loss.backward()
            optimizer.step()
            model.after_step()

        work()
        evaluations = calls[0]
        counting.remove()
        timing = _timed("training step", "torchdiffeq odeint, direct back-propagation", work, self._settings, lambda: None)
        return replace(timing, evaluations=evaluations)

    def prediction(self) -> Timing:
        """Measure a prediction of the batch."""
        model, batch, samples = self.model().eval(), self.batch(), self._settings.samples
        stats: list[Stats | None] = [None]

        def predict() -> None:
            stats[:] = [model.predict(batch.x, samples=samples).stats]

        return _timed("prediction", f"{samples} samples", predict, self._settings, lambda: stats[0])


def _timed(work: str, way: str, call: Callable[[], None], settings: Settings, stats: Callable[[], Stats | None]) -> Timing:
    """Measure the median time of a call; ``stats`` is read after the last one."""
    on_cuda = settings.device.type == "cuda"

    def wait() -> None:
        if on_cuda:
            torch.cuda.synchronize(settings.device)

    for _ in range(_WARM_UPS):
        call()
    wait()
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(settings.device)
    samples = []
    for _ in range(settings.repeats):
        begin = time.perf_counter()
        call()
        wait()
        samples.append((time.perf_counter() - begin) * 1e3)
    peak = torch.cuda.max_memory_allocated(settings.device) / 1e6 if on_cuda else None
    last = stats()
    steps, evaluations = (None, None) if last is None else (last.n_accepted, last.n_evaluations)
    return Timing(work, way, statistics.median(samples), steps, evaluations, peak)
