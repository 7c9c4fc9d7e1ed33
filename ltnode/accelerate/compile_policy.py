"""When the layers of a captured step are compiled, and whether the result is kept.

Compiling takes ten seconds or more, which a short training would not gain back. A training therefore begins with its layers as
they are, and compiles them once it has spent some time on batches of one size. What was compiled is kept only if its steps are
faster and compute the same loss, so that a training never becomes slower by more than the time of one attempt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import torch

from ltnode.accelerate.compiled import has_dropout
from ltnode.accelerate.recorder import Recorder
from ltnode.device import Precision
from ltnode.models import Model
from ltnode.ode.trace import no_trace
from ltnode.typing import Tensor

_WORTHWHILE = 20.0
"""Seconds of captured steps after which the layers are compiled: about as long as compiling takes."""
_TRIALS = 10
_TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 3e-2}
"""Largest relative difference of two losses of the same step: both round at other places."""


class CompilePolicy:
    """Decides for every batch size when its step is compiled.

    Args:
        when: ``"never"``, ``"later"`` (after enough time) or ``"now"``.
    """

    def __init__(self, when: Literal["never", "later", "now"]) -> None:
        self._when = when
        self._spent: dict[int, float] = {}
        self._tried: set[int] = set()
        self._chosen: set[int] = set()
        self._last: tuple[int, float] | None = None

    def due(self, size: int) -> bool:
        """Whether to compile the step for batches of a size now; called once per step."""
        if self._when == "never" or size in self._tried:
            return False
        if self._when == "now":
            return True
        now = time.monotonic()
        if self._last is not None and self._last[0] == size:
            self._spent[size] = self._spent.get(size, 0.0) + now - self._last[1]
        self._last = (size, now)
        return self._spent.get(size, 0.0) > _WORTHWHILE

    def tried(self, size: int) -> None:
        """Remember that an attempt was made, which is the only one for this size."""
        self._tried.add(size)

    def choose(self, size: int) -> None:
        """Compile the layers of all further steps for batches of this size, whatever their number of solver steps."""
        self._chosen.add(size)

    def chosen_for(self, size: int) -> bool:
        """Whether steps for batches of a size are compiled."""
        return size in self._chosen


def milliseconds(graph: torch.cuda.CUDAGraph, model: Model, recorder: Recorder) -> float:
    """Time of one replay, measured by replays that update nothing."""
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    recorder.enabled.fill_(False)
    try:
        with no_trace(model, recorder.enabled.device):
            graph.replay()
            began.record()
            for _ in range(_TRIALS):
                graph.replay()
            ended.record()
            ended.synchronize()
    finally:
        recorder.enabled.fill_(True)
    return began.elapsed_time(ended) / _TRIALS


def agreement_problem(
    plain: Mapping[str, Tensor], compiled: Mapping[str, Tensor], model: Model, precision: Precision
) -> str | None:
    """Describe how the losses of the same step differ; None if they agree, or if dropout makes them random."""
    if has_dropout(model):
        return None
    expected, found = float(plain["loss"]), float(compiled["loss"])
    if abs(found - expected) <= _TOLERANCE[precision] * max(abs(expected), 1.0):
        return None
    return f"they compute the loss {found:.6g} instead of {expected:.6g}"
