"""``ltnode.fit_seeds``: several concurrent runs in one process; `fit_together` for runs that differ in more than their seed.

The runs take turns, one step each. On CUDA every run has its own stream, so that kernels of one run use multiprocessors that the
others leave idle, and large kernels use only a part of the device; the host launches a step of one run while those of the others
still compute. Nothing else is shared: every run has the initial weights, data order, end-times, random numbers and folder that it
would have alone. On a CPU it ends with the same weights, bit for bit; on CUDA, sums over a batch may be rounded differently.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ltnode.device import choose_device, product_precision
from ltnode.errors import ConfigError
from ltnode.models import Model
from ltnode.progress import progress_bar
from ltnode.training.batches import as_dataset
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.engine import checked_config
from ltnode.training.loop import Training
from ltnode.training.run import Run
from ltnode.training.status import TrainingError
from ltnode.training.stopping import stop_requests
from ltnode.typing import Tensor


def seed_folder(out: str | Path, seed: int) -> Path:
    """Return the run folder of one seed, ``OUT-seedN``."""
    path = Path(out)
    return path.with_name(f"{path.name}-seed{seed}")


@dataclass(frozen=True)
class Job:
    """The arguments of `ltnode.fit` for one of the runs."""

    model: Model
    data: Any
    config: TrainConfig | None = None
    out: str | Path | None = None


def fit_seeds(
    build: Callable[[int], Model],
    data: Any,
    config: TrainConfig | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    out: str | Path | None = None,
    *,
    resume: bool = False,
) -> list[Run]:
    """Train the same model from several seeds as `ltnode.fit_seeds` documents, without choosing operating points."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be one or more different integers, not {list(seeds)}")
    jobs = []
    for seed in seeds:
        model = build(seed)
        dataset = as_dataset(data, model)
        seeded = checked_config(config, model, dataset, out, resume).replace(seed=seed)
        jobs.append(Job(model, dataset, seeded, None if out is None else seed_folder(out, seed)))
    return fit_together(jobs, resume=resume)


def fit_together(jobs: Sequence[Job], *, resume: bool = False, at_once: int | None = None) -> list[Run]:
    """Train several models concurrently, of any kind and on any data, all on one device and in one precision.

    ``at_once`` runs (None: all of them) take turns, and when one ends, the next starts. `ltnode.fit_seeds` documents ``resume``
    and the errors.
    """
    widen_device_queues()
    datasets = [as_dataset(job.data, job.model) for job in jobs]
    configs = [
        checked_config(job.config, job.model, dataset, job.out, resume) for job, dataset in zip(jobs, datasets, strict=True)
    ]
    shared = {(config.device, config.precision) for config in configs}
    if len(shared) != 1:
        raise ConfigError(
            "concurrent runs must have the same device and precision, "
            f"not {', '.join(f'{device} {precision}' for device, precision in sorted(shared)) or 'no run at all'}"
        )
    device = choose_device(configs[0].device)
    workers = Workers.start(device)
    if workers.world > 1:
        workers.stop()
        raise ConfigError("concurrent runs train in one process: start it without torchrun, or use torchrun for single runs")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), product_precision(configs[0].precision):
        concurrent_runs = len(jobs) if at_once is None else max(1, min(at_once, len(jobs)))
        turns = []
        for job, dataset, config in zip(jobs, datasets, configs, strict=True):
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            folder = None if job.out is None else Path(job.out)
            with _on(stream):
                training = Training(job.model, dataset, config, device, workers, folder, None, concurrent_runs)
            turns.append(_Turns(str(folder or f"seed {config.seed}"), training, stream))
        _take_turns(turns, resume, concurrent_runs)
    return [turn.training.result for turn in turns]


def widen_device_queues() -> None:
    """Let CUDA use 32 hardware queues instead of 8, because kernels of runs that share a queue wait for each other.

    CUDA reads the variable when it starts, so this has no effect in a process that has used the device; a value that the user has
    set is kept.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@dataclass
class _Turns:
    """One of the runs: its stream, its random state during the turns of others, and its remaining steps."""

    name: str
    training: Training
    stream: torch.cuda.Stream | None
    losses: Generator[float | None] | None = None
    states: list[Tensor] = field(default_factory=list)
    failure: TrainingError | None = None
    started: bool = False

    @contextmanager
    def _random_state(self) -> Generator[None]:
        used = [torch.default_generator]
        if self.stream is not None:
            used.append(torch.cuda.default_generators[self.stream.device_index])
        for generator, state in zip(used, self.states, strict=False):
            generator.set_state(state)
        yield
        self.states = [generator.get_state() for generator in used]

    def advance(self) -> float | None:
        """Make one step; ``losses`` is None after the last."""
        assert self.losses is not None
        self.started = True
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)  # kept until the next turn, because a reset after every step would cost time
        with self._random_state():
            try:
                return next(self.losses)
            except StopIteration:
                self.losses = None
            except TrainingError as error:
                self.losses, self.failure = None, error
        return None


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _take_turns(turns: list[_Turns], resume: bool, at_once: int) -> None:
    """Make one step of each run in turn, ``at_once`` runs at a time, until all have ended."""
    with (
        stop_requests(enabled=True) as stop,
        progress_bar("training", sum(turn.training.total_steps for turn in turns), "steps") as report,
        ExitStack() as stack,
    ):
        if turns[0].stream is not None:
            stack.callback(torch.cuda.set_stream, torch.cuda.current_stream(turns[0].training.device))
        for turn in turns:
            turn.losses = turn.training.steps(resume, lambda: stop.signal is not None)
            stack.callback(turn.losses.close)
        left = list(turns)
        while left:
            for turn in left[:at_once]:
                loss = turn.advance()
                report.completed(sum(turn.training.steps_done for turn in turns), "" if loss is None else f"loss {loss:.4g}")
            for turn in left:
                if turn.losses is None:
                    turn.training.release()
            # After a signal no waiting run is started.
            left = [turn for turn in left if turn.losses is not None and (turn.started or stop.signal is None)]
    if stop.signal is not None:
        signal.raise_signal(stop.signal)
    failed = [turn for turn in turns if turn.failure is not None]
    if failed:
        first = failed[0].failure
        assert first is not None
        raise TrainingError(first.status, f"{', '.join(turn.name for turn in failed)}: {first.what}") from first
