"""Several runs that take turns in one process, one step each.

On CUDA every run has its own stream, so that kernels of one run use multiprocessors that the others leave idle, and large
kernels use only a part of the device; the host launches a step of one run while those of the others still compute. Nothing else
is shared: every run has the initial weights, data order, end-times, random numbers and folder that it would have alone. On a CPU
it ends with the same weights, bit for bit; on CUDA, sums over a batch may be rounded differently.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from ltnode.progress import progress_bar
from ltnode.training.loop import Training
from ltnode.training.status import TrainingError
from ltnode.training.stopping import stop_requests
from ltnode.typing import Tensor


def widen_device_queues() -> None:
    """Let CUDA use 32 hardware queues instead of 8, because kernels of runs that share a queue wait for each other.

    CUDA reads the variable when it starts, so this has no effect in a process that has used the device; a value that the user has
    set is kept.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@dataclass
class Turns:
    """One of the runs.

    Attributes:
        training: The training.
        stream: Stream of the run on CUDA; None for the current stream.
        losses: The remaining steps; None after the last.
        states: States of the random generators during the turns of other runs.
        failure: The error that ended the run.
        started: Whether the first step has been made.
    """

    training: Training
    stream: torch.cuda.Stream | None
    losses: Generator[float | None] | None = None
    states: list[Tensor] = field(default_factory=list)
    failure: TrainingError | None = None
    started: bool = False

    @property
    def name(self) -> str:
        """The folder of the run, or its seed."""
        return str(self.training.result.path or f"seed {self.training.config.seed}")

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
        """Make one step; returns the loss if it is known."""
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


def take_turns(turns: list[Turns], resume: bool, at_once: int) -> None:
    """Make one step of each run in turn, ``at_once`` runs at a time, until all have ended.

    SIGINT and SIGTERM stop the runs between two steps, with a checkpoint.

    Raises:
        TrainingError: A run failed; the other runs were trained to their end first.
    """
    workers = turns[0].training.workers
    with (
        stop_requests(enabled=workers.world == 1) as stop,
        progress_bar("training", sum(turn.training.total_steps for turn in turns), "steps", workers.is_writer) as report,
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
        signal.raise_signal(stop.signal)  # the runs are saved, so the signal may now have its usual effect
    failures = {turn.name: turn.failure for turn in turns if turn.failure is not None}
    for first in failures.values():
        if len(turns) == 1:
            raise first
        raise TrainingError(first.status, f"{', '.join(failures)}: {first.what}") from first
