"""Where the time of a fused training step goes on CUDA: kernels grouped by what they do.

usage: python benchmarks/profile_training.py [--shapes cifar10|mnist] [--model lt-node] [--steps 5] [--kernels 12]
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training import graph_step, milliseconds, synthetic_batch

from ltnode.models.step import Batch

REPLAYS = 20


def profiled_step(name: str, shapes: str, steps: int | None, precision: str) -> tuple[float, dict[str, tuple[float, float]]]:
    """Milliseconds of a replayed step, and per kernel its milliseconds and launches a step."""
    edges = None if steps is None else [3.0 * m / steps for m in range(steps + 1)]
    step = graph_step(name, shapes, precision, True, edges, {})
    x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
    step(Batch(x, y, torch.arange(256, device="cuda"), 0))
    graph = next(iter(step._graphs.values())).graph
    total = milliseconds(graph.replay, 50)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as record:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in record.events():
        if event.device_type == DeviceType.CUDA:
            kernels[event.name].append(event.device_time / 1e3)
    return total, {k: (sum(v) / REPLAYS, len(v) / REPLAYS) for k, v in kernels.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="cifar10", choices=("cifar10", "mnist"))
    parser.add_argument("--model", default="lt-node")
    parser.add_argument("--steps", type=int, help="equal solver steps; the balanced grid without")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--kernels", type=int, default=25, help="rows to print")
    options = parser.parse_args()
    total, kernels = profiled_step(options.model, options.shapes, options.steps, options.precision)
    busy, launches = (sum(v[i] for v in kernels.values()) for i in (0, 1))
    print(f"{options.model} {options.shapes} steps={options.steps}: {total:.3f} ms; {launches:.0f} kernels, {busy:.3f} ms in all")
    for name, (ms, count) in sorted(kernels.items(), key=lambda item: -item[1][0])[: options.kernels]:
        print(f"{ms:8.4f} ms {count:6.1f} x  {name[:150]}")


if __name__ == "__main__":
    main()
