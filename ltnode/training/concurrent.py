"""``ltnode.fit_seeds``: several runs side by side in one process; `fit_together` for runs that differ in more than their seed.

The runs take turns, a step each. On CUDA every run has a stream of its own, so that the kernels of one fill what the others leave
idle, and its large kernels take a part of the card (`devices.sharing_device`); a step of one run launches while those
of the others still compute. Nothing else is shared: each run has the first weights, data order, end-times, random numbers and
folder that it would have alone. On a CPU it ends with the same weights, bit for bit; on CUDA sums over a batch may be rounded
differently.
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
from ltnode.training.batches import as_dataset
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.engine import Training, checked_config
from ltnode.training.progress import progress_bar
from ltnode.training.run import Run
from ltnode.training.status import TrainingError
from ltnode.training.stopping import stop_requests
from ltnode.typing import Tensor


def seed_folder(out: str | Path, seed: int) -> Path:
    """The run folder of one seed: ``OUT-seedN``."""
    path = Path(out)
    return path.with_name(f"{path.name}-seed{seed}")


@dataclass(frozen=True)
class Job:
    """One of the runs: what `ltnode.fit` takes.

    Attributes:
        model: The untrained model.
        data: A `Dataset`, or a pair (x, y).
        config: Its configuration; None for the preset.
        out: Its run folder; None writes nothing.
    """

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
    """Train the same model from several seeds at once.

    Args:
        build: Makes the untrained model of a seed, such as ``lambda seed: ltnode.build("lt-node", data, seed=seed)``.
        data: As in `ltnode.fit`.
        config: As in `ltnode.fit`; every run has it with its own seed.
        seeds: Of the runs, all different.
        out: The run folders are ``OUT-seed0``, ...; None writes nothing.
        resume: Continue the runs that are there, and begin the others.

    Returns:
        The runs, in the order of the seeds.

    Raises:
        TrainingError: A run failed; the others were trained to their end first, and the message names it.
        ConfigError, CheckpointError, InputError: As `ltnode.fit`, before any training.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be one or more different numbers, not {list(seeds)}")
    jobs = []
    for seed in seeds:
        model = build(seed)
        dataset = as_dataset(data, model)
        own = checked_config(config, model, dataset, out, resume).replace(seed=seed)
        jobs.append(Job(model, dataset, own, None if out is None else seed_folder(out, seed)))
    return fit_together(jobs, resume=resume)


def fit_together(jobs: Sequence[Job], *, resume: bool = False, at_once: int | None = None) -> list[Run]:
    """Train several models at once, of any kind and on any data, all on one device and in one precision.

    Args:
        jobs: What to train.
        resume: Continue the runs that are there, and begin the others.
        at_once: How many take turns; where one ends the next begins. None: all of them.

    Raises:
        TrainingError: A run failed; the others were trained to their end first, and the message names it.
        ConfigError, CheckpointError, InputError: As `ltnode.fit`, before any training.
    """
    widen_card_queues()
    datasets = [as_dataset(job.data, job.model) for job in jobs]
    configs = [
        checked_config(job.config, job.model, dataset, job.out, resume) for job, dataset in zip(jobs, datasets, strict=True)
    ]
    shared = {(config.device, config.precision) for config in configs}
    if len(shared) != 1:
        raise ConfigError(
            "runs side by side need one device and one precision, "
            f"not {', '.join(f'{device} {precision}' for device, precision in sorted(shared)) or 'no run at all'}"
        )
    device = choose_device(configs[0].device)
    workers = Workers.start(device)
    if workers.world > 1:
        workers.stop()
        raise ConfigError("several runs train in one process: start it without torchrun, or each run under a torchrun of its own")
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(product_precision(configs[0].precision))
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


def widen_card_queues() -> None:
    """Let CUDA use 32 hardware queues instead of 8: kernels of runs that share one wait for each other.

    CUDA reads this where it starts: in a process that has used the card before, and where the user has set it, nothing changes.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@dataclass
class _Turns:
    """One of the runs: its stream, its random numbers while others have their turn, and what is left of it."""

    name: str
    training: Training
    stream: torch.cuda.Stream | None
    losses: Generator[float | None] | None = None
    states: list[Tensor] = field(default_factory=list)
    failure: TrainingError | None = None
    begun: bool = False

    @contextmanager
    def _own_random_numbers(self) -> Generator[None]:
        used = [torch.default_generator]
        if self.stream is not None:
            used.append(torch.cuda.default_generators[self.stream.device_index])
        for generator, state in zip(used, self.states, strict=False):
            generator.set_state(state)
        yield
        self.states = [generator.get_state() for generator in used]

    def advance(self) -> float | None:
        """One step; afterwards ``losses`` is None if it was the end."""
        assert self.losses is not None
        self.begun = True
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)  # stays until the next turn: going back after every step would cost more
        with self._own_random_numbers():
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
    """A step of each run after the other, a few runs at a time, until all have ended."""
    with (
        stop_requests(enabled=True) as stop,
        progress_bar(sum(turn.training.total_steps for turn in turns), shown=True) as advance,
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
                advance(sum(turn.training.steps_done for turn in turns), loss)
            for turn in left:
                if turn.losses is None:
                    turn.training.release()
            # What waits when a signal comes is not begun.
            left = [turn for turn in left if turn.losses is not None and (turn.begun or stop.signal is None)]
    if stop.signal is not None:
        signal.raise_signal(stop.signal)
    failed = [turn for turn in turns if turn.failure is not None]
    if failed:
        first = failed[0].failure
        assert first is not None
        raise TrainingError(first.status, f"{', '.join(turn.name for turn in failed)}: {first.what}") from first
