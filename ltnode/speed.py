"""``ltnode bench``: the cost of a training step and of a prediction on this machine, with peers in the same run.

The inputs are random numbers in the shape of the data, so no data set is needed. Times are medians after a warm-up; timings are
noisy, so compare ratios.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ltnode.accelerate.plan import unsupported_reason_capture
from ltnode.device import product_precision
from ltnode.models import LatentTimeODE, Model, build, input_spec
from ltnode.models.step import Batch
from ltnode.ode import Stats
from ltnode.training import TrainConfig, train_preset
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
    """What is measured: a model on ``batch`` inputs in the shape of a data set, ``samples`` end-times per prediction."""

    model: str
    data: str
    batch: int
    samples: int
    device: torch.device
    repeats: int


def measure(settings: Settings) -> Iterator[Timing]:
    """Measure training steps in every supported variant, torchdiffeq if it is installed, and a prediction."""
    yield from _training_steps(settings)
    if importlib.util.find_spec("torchdiffeq") is not None and settings.model in ("node", "uni-node", "lt-node"):
        yield _torchdiffeq(settings)
    model, batch = _model(settings), _batch(settings)
    model.eval()

    stats: list[Stats | None] = [None]

    def predict() -> None:
        stats[:] = [model.predict(batch.x, samples=settings.samples).stats]

    yield _timed("prediction", f"{settings.samples} samples", predict, settings, lambda: stats[0])


def record(settings: Settings, timings: list[Timing]) -> dict[str, Any]:
    """Return settings and timings as JSON, with the machine and the source version."""
    about = {**asdict(settings), "device": device_name(settings.device), "torch": torch.__version__, **source_state()}
    return {**about, "tolerance": 0.01, "timings": [asdict(timing) for timing in timings]}


def _training_steps(settings: Settings) -> Iterator[Timing]:
    base = train_preset(settings.model, settings.data).replace(device=str(settings.device), batch_size=settings.batch)
    plain = _model(settings)
    if isinstance(plain, LatentTimeODE):
        yield _step_timing(
            settings, "reference: grid search, then replay", base.replace(accelerate="off"), {"training": "adaptive"}
        )
        yield _step_timing(settings, "training grid, eager", base.replace(accelerate="off"), {"training": "kept"})
    else:
        yield _step_timing(settings, "eager", base.replace(accelerate="off"), None)
    if unsupported_reason_capture(plain, make_optimizers(plain, base), settings.device) is not None:
        return
    for precision in ("tf32", "bf16"):
        for way in ("graph", "auto"):
            name = f"{'captured layers' if way == 'graph' else 'fastest (auto)'}, {precision}"
            yield _step_timing(settings, name, base.replace(accelerate=way, precision=precision), None)


def _step_timing(settings: Settings, way: str, config: TrainConfig, solver: dict[str, Any] | None) -> Timing:
    model = _model(settings, **({} if solver is None else {"solver": solver})).train()
    optimizers, batch = make_optimizers(model, config), _batch(settings)
    step = make_step(model, optimizers, config, _EXAMPLES, averages=make_averages(optimizers, config), example=batch.x[:1])
    number = iter(range(10**9))
    with product_precision(config.precision):

        def work() -> None:
            step(replace(batch, step=next(number)))

        work()
        return _timed("training step", way, work, settings, lambda: model.solve_stats)


def _torchdiffeq(settings: Settings) -> Timing:
    import torchdiffeq  # type: ignore[import-untyped]

    model, batch = _model(settings).train(), _batch(settings)
    assert isinstance(model, LatentTimeODE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    low, high = model.end_time.window
    ends = torch.linspace(low, high, model.objective.samples + 1, device=settings.device)[1:]
    if high <= low:
        ends = torch.full((1,), high, device=settings.device)
    calls = [0]
    counting = model.field.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))

    def work() -> None:
        times = torch.cat([ends.new_zeros(1), ends])
        states = torchdiffeq.odeint(model.field, model.initial_state(batch.x), times, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
        optimizer.zero_grad()
        posterior = model.posterior_terms(batch.x, ends)
        model.compose_loss(model.outputs_at(states), batch.y, ends, posterior, _EXAMPLES).loss.backward()
        optimizer.step()
        model.after_step()

    work()
    evaluations = calls[0]
    counting.remove()
    timing = _timed("training step", "torchdiffeq odeint, direct back-propagation", work, settings, lambda: None)
    return replace(timing, evaluations=evaluations)


def _model(settings: Settings, **options: Any) -> Model:
    return build(settings.model, settings.data, seed=0, **options).to(settings.device)


def _batch(settings: Settings) -> Batch:
    spec = input_spec(settings.data)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(settings.batch, *spec.shape, generator=generator).to(settings.device)
    if spec.n_classes is None:
        y = torch.randn(settings.batch, generator=generator).to(settings.device)
    else:
        y = torch.randint(0, spec.n_classes, (settings.batch,), generator=generator).to(settings.device)
    return Batch(x, y, torch.arange(settings.batch, device=settings.device), 0)


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
