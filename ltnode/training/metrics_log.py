"""Sums over the steps between two lines of the log, kept on the device so that no step waits for it."""

from __future__ import annotations

import time
from typing import Any

import torch

from ltnode.ode import Stats
from ltnode.training.step import LossPieces


class MetricsLog:
    """Means of the loss's pieces and of the solver's work, and the speed, since the last line."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self._sums = torch.zeros(0, dtype=torch.float64, device=device)
        self._steps = 0
        self._solves = 0
        self._work = [0, 0, 0]
        self.restart_clock()

    def add(self, pieces: LossPieces, examples: int, stats: Stats | None) -> None:
        """Count one step: its pieces of the loss, its number of examples, its solve."""
        if not self._steps:
            self._names, self._sums = list(pieces.names), pieces.values.clone()
        else:
            self._sums += pieces.values
        self._steps += 1
        self._examples += examples
        if stats is not None:
            self._solves += 1
            counts = (stats.n_accepted, stats.n_rejected, stats.n_evaluations)
            self._work = [total + count for total, count in zip(self._work, counts, strict=True)]

    def is_finite(self) -> bool:
        """Whether every sum is a number; waits for the device."""
        return bool(torch.isfinite(self._sums).all())

    def take(self) -> dict[str, Any]:
        """The means since the last call, which begins a new count."""
        line: dict[str, Any] = {name: total / self._steps for name, total in zip(self._names, self._sums.tolist(), strict=True)}
        if self._solves:
            names = ("accepted_steps", "rejected_steps", "evaluations")
            line["solver"] = {name: total / self._solves for name, total in zip(names, self._work, strict=True)}
        line["examples_per_second"] = round(self._examples / (time.perf_counter() - self._since), 2)
        self._steps = self._solves = 0
        self._work = [0, 0, 0]
        return line

    def state(self) -> dict[str, Any]:
        """The unfinished sums, as JSON: a resumed run writes the same lines."""
        return {
            "names": self._names,
            "sums": self._sums.tolist() if self._steps else [],
            "steps": self._steps,
            "solves": self._solves,
            "work": self._work,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with the sums of `state`; the clock begins anew."""
        self._names = list(state["names"])
        self._sums = torch.tensor(state["sums"], dtype=torch.float64, device=self._device)
        self._steps, self._solves, self._work = int(state["steps"]), int(state["solves"]), list(state["work"])
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from now on."""
        self._since = time.perf_counter()
        self._examples = 0
