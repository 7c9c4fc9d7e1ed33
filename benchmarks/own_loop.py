"""A loop of one's own on a CPU: a loop over torchdiffeq, over `model.loss`, and over `ltnode.accelerate`, in one run.

usage: python benchmarks/own_loop.py [--rounds 15] [--threads 1] [--json benchmarks/results/own_loop.json]

Batch 1500, S = 10 end-times that every step draws anew on (0, 3), Dopri5 at rtol = atol = 1e-2, loss, gradient and SGD step, for
the paper's 1-D network and for the default one. The loops take turns, and every time is the processor time of one step, so that
other processes on the machine disturb little; printed are medians over the rounds, with accepted steps and evaluations.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from solver import BATCH, NETWORKS, batch, network

import ltnode
from ltnode.training.provenance import source_state

WANTED = {"paper": 2.5, "default": 4.5}
"""Times as fast as torchdiffeq direct that a loop with the kept grid should be."""
SETTLING = 10
"""Steps before the first round: the first ones search the grid and change the field the most."""


class Loop:
    """One loop: its step, and what it took."""

    def __init__(self, name: str, model: ltnode.LatentTimeODE, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
        self.name, self.model, self.optimizer, self._step = name, model, optimizer, step
        self.seconds: list[float] = []
        self.evaluations = 0
        model.field.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.evaluations += 1

    def step(self) -> None:
        self.evaluations = 0
        start = time.process_time()
        self._step()
        self.seconds.append(time.process_time() - start)


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def torchdiffeq_loop(preset: str) -> Loop:
    import torchdiffeq

    model, (x, y) = network(preset), batch()
    optimizer = sgd(model)

    def step() -> None:
        times = model.end_time.training_times(model.objective.samples, scheme=model.objective.scheme, dtype=x.dtype).sort().values
        h = model.initial_state(x)
        grid = torch.cat([times.new_zeros(1), times])
        states = torchdiffeq.odeint(model.field, h, grid, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
        posterior = model.posterior_terms(x, times)
        loss = model.compose_loss(model.outputs_at(states), y, times, posterior, BATCH).loss
        _update(model, optimizer, loss)

    return Loop("torchdiffeq direct", model, optimizer, step)


def loss_loop(preset: str, training: str) -> Loop:
    model, (x, y) = network(preset, training=training), batch()
    optimizer = sgd(model)
    name = "model.loss, kept grid" if training == "kept" else "model.loss, two-phase reference"
    return Loop(name, model, optimizer, lambda: _update(model, optimizer, model.loss(x, y, n_data=BATCH)))


def accelerated_loop(preset: str) -> Loop:
    model, (x, y) = network(preset, training="kept"), batch()
    optimizer = sgd(model)
    step = ltnode.accelerate(model, optimizer, n_data=BATCH)
    return Loop("ltnode.accelerate, kept grid", model, optimizer, lambda: step(x, y))


def _update(model: ltnode.LatentTimeODE, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.after_step()


def compare(preset: str, rounds: int) -> list[dict[str, Any]]:
    loops = [torchdiffeq_loop(preset), loss_loop(preset, "adaptive"), loss_loop(preset, "kept"), accelerated_loop(preset)]
    for loop in loops:
        for _ in range(SETTLING):
            loop.step()
        loop.seconds.clear()
    for _ in range(rounds):
        for loop in loops:
            loop.step()
    direct = statistics.median(loops[0].seconds)
    rows = []
    for loop in loops:
        seconds, stats = statistics.median(loop.seconds), loop.model.solve_stats
        row = {"network": preset, "way": loop.name, "ms": 1e3 * seconds, "times_as_fast": direct / seconds}
        steps = None if stats is None else stats.n_accepted
        rows.append({**row, "accepted_steps": steps, "evaluations": loop.evaluations})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = [row for preset in NETWORKS for row in compare(preset, options.rounds)]
    claims = [
        {"network": row["network"], "way": row["way"], "ratio": row["times_as_fast"], "wanted": WANTED[row["network"]]}
        for row in rows
        if row["way"].endswith("kept grid")
    ]
    for row in rows:
        print("  ".join(f"{key}={value:.2f}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()))
    for claim in claims:
        met = "met" if claim["ratio"] >= claim["wanted"] else "missed"
        print(f"{claim['network']}, {claim['way']}: {claim['ratio']:.2f} times torchdiffeq, wanted {claim['wanted']}: {met}")
    machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": options.threads, **source_state()}
    if options.json:
        options.json.write_text(
            json.dumps({**machine, "rounds": options.rounds, "rows": rows, "claims": claims}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
