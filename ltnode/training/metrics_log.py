"""The metrics of a run: sums over the steps between two lines of the log, and the lines as TensorBoard event files.

The sums are kept on the device, so that no step waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ltnode.errors import missing_extra
from ltnode.ode import Stats
from ltnode.typing import Tensor


class MetricsLog:
    """Means of the parts of the loss and of the solver's work, and the speed, since the last line."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._solves = 0
        self._work = [0, 0, 0]
        self.restart_clock()

    def add(self, parts: Mapping[str, Tensor], examples: int, stats: Stats | None) -> None:
        """Count one step: the parts of its loss (0-dim float64), the number of its examples and the work of its solve."""
        if not self._steps:
            self._sums = {name: value.clone() for name, value in parts.items()}
        else:
            torch._foreach_add_(list(self._sums.values()), list(parts.values()))  # one launch for all parts
        self._steps += 1
        self._examples += examples
        if stats is not None:
            self._solves += 1
            counts = (stats.n_accepted, stats.n_rejected, stats.n_evaluations)
            self._work = [total + count for total, count in zip(self._work, counts, strict=True)]

    def is_finite(self) -> bool:
        """Whether every sum is finite; waits for the device."""
        return all(torch.isfinite(torch.stack(list(self._sums.values()))).tolist()) if self._sums else True

    def take(self) -> dict[str, Any]:
        """Return the means since the last call and start a new count."""
        line: dict[str, Any] = {name: total / self._steps for name, total in self._totals().items()}
        if self._solves:
            names = ("accepted_steps", "rejected_steps", "evaluations")
            line["solver"] = {name: total / self._solves for name, total in zip(names, self._work, strict=True)}
        line["examples_per_second"] = round(self._examples / (time.perf_counter() - self._since), 2)
        self._steps = self._solves = 0
        self._work = [0, 0, 0]
        return line

    def _totals(self) -> dict[str, float]:
        values = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        return dict(zip(self._sums, values, strict=True))

    def state(self) -> dict[str, Any]:
        """Return the unfinished sums as JSON, so that a resumed run writes the same lines."""
        sums = list(self._totals().values()) if self._steps else []
        return {"names": list(self._sums), "sums": sums, "steps": self._steps, "solves": self._solves, "work": self._work}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with the sums of `state`; the clock starts anew."""
        sums = torch.tensor(state["sums"], dtype=torch.float64, device=self._device)
        self._sums = dict(zip(state["names"], sums.unbind(), strict=False))  # no sums at the start of a count
        self._steps, self._solves, self._work = int(state["steps"]), int(state["solves"]), list(state["work"])
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from now on."""
        self._since = time.perf_counter()
        self._examples = 0


def tensorboard_writer() -> Any:
    """Return the class that writes event files.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_extra("tensorboard", "tensorboard", "tensorboard = true") from None
    return SummaryWriter


@contextmanager
def tensorboard(folder: Path | None, step: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes a line of metrics for TensorBoard; without a folder, one that does nothing.

    Points of an interrupted run that lie after ``step``, where it continues, are hidden.
    """
    if folder is None:
        yield lambda line: None
        return
    writer = tensorboard_writer()(str(folder), purge_step=step)

    def write(line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if isinstance(value, Mapping):
                for inner, number in value.items():
                    writer.add_scalar(f"{name}/{inner}", number, line["step"])
            elif isinstance(value, int | float) and name != "step":
                writer.add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        writer.close()
