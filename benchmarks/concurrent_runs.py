"""Captured training steps of several concurrent runs on CUDA, without the host's part of a step.

usage: python benchmarks/concurrent_runs.py [--runs 1 5] [--repeats 150]

LT-NODE, CIFAR10's shapes, batch 256, bf16, one solver step of length 3. Every run has a separate stream, and their graphs are
replayed in turn: milliseconds for one step of all of them, the median of three loops. `profile_training.py --steps 1` shows the
time of the kernels of one run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from training import graph_step, synthetic_batch

from ltnode.accelerate.graph_step import GraphStep
from ltnode.models.step import Batch
from ltnode.training.concurrent import widen_device_queues
from ltnode.training.provenance import source_state

LOOPS, SETTLING = 3, 20


@dataclass(frozen=True)
class Run:
    """A captured step on its stream.

    Attributes:
        step: The step whose parameters and buffers the graph reads and writes.
    """

    stream: torch.cuda.Stream
    graph: torch.cuda.CUDAGraph
    step: GraphStep


def captured_runs(count: int) -> list[Run]:
    """Capture a number of runs for concurrent replay."""
    runs = []
    for _ in range(count):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step = graph_step("lt-node", "cifar10", "bf16", True, [0.0, 3.0], {}, count)
            x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
            step(Batch(x, y, torch.arange(256, device="cuda"), 0))
            runs.append(Run(stream, next(iter(step._graphs.values())).graph, step))
    torch.cuda.synchronize()
    return runs


def milliseconds(runs: list[Run], repeats: int) -> float:
    """Return the milliseconds for one step of all runs."""

    def replay(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            for run in runs:
                with torch.cuda.stream(run.stream):
                    run.graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / times * 1e3

    replay(SETTLING)
    return statistics.median(replay(repeats) for _ in range(LOOPS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--repeats", type=int, default=150)
    options = parser.parse_args()
    widen_device_queues()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/concurrent_runs.py measures a CUDA device; this machine has none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, commit {source_state()['git_commit']}")
    found = {count: milliseconds(captured_runs(count), options.repeats) for count in options.runs}
    for count, ms in found.items():
        print(f"{count} at once: {ms:.3f} ms a step of all of them, {ms / found[options.runs[0]]:.2f} times the first")


if __name__ == "__main__":
    main()
