"""One training step on CUDA: reference, captured, fused, and torchdiffeq in the same run.

usage: python benchmarks/training.py [--shapes cifar10|mnist] [--model lt-node] [--repeats 50] [--json FILE]

Prints a table of medians with tolerance, accepted steps and evaluations of the field beside every time, and compares the losses
of the accelerated steps with those of the reference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.training import TrainConfig
from ltnode.training.accelerated import GraphStep
from ltnode.training.batches import Batch
from ltnode.training.step import make_optimizers


def synthetic_batch(spec: Any, batch: int, device: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, *spec["shape"], generator=generator).to(device)
    return x, torch.randint(0, spec["n_classes"], (batch,), generator=generator).to(device)


def milliseconds(work: Callable[[], Any], repeats: int, warm_up: int = 5) -> float:
    for _ in range(warm_up):
        work()
    torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)


def throughput(work: Callable[[], Any], repeats: int) -> float:
    """Milliseconds a call when many are queued one after the other, as in training."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3


def graph_step(
    name: str, data: str, precision: str, fused: bool, edges: list[float] | None, options: dict[str, Any]
) -> GraphStep:
    model = ltnode.build(name, data, seed=0, **options).to("cuda").train()
    config = TrainConfig(model=name, data=data, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4, precision=precision)
    step = GraphStep(model, make_optimizers(model, config), config, 50_000, fused)
    if edges is not None:
        step.kept.edges = edges
        step.kept._next_attempt = 10**9
    return step


def time_graph(
    name: str, data: str, precision: str, fused: bool, edges: list[float] | None, repeats: int, **options: Any
) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = graph_step(name, data, precision, fused, edges, options)
    x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
    indices = torch.arange(256, device="cuda")
    counter = iter(range(10**9))

    def work() -> Any:
        return step(Batch(x, y, indices, next(counter), 0, 1.0))

    work()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    graph = next(iter(step._graphs.values())).graph
    n = len(step.kept.edges) - 1
    return {
        "way": f"{name} {'fused' if fused else 'graph'} {precision}" + (" balanced grid" if edges is None else ""),
        "device_ms": milliseconds(graph.replay, repeats),
        "loop_ms": throughput(work, 4 * repeats),
        "steps": n,
        "evaluations": step.tableau.evaluations(n),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "start_s": ready,
        "masked": step.counts()["masked_updates"],
    }


def time_torchdiffeq(data: str, repeats: int, adjoint: bool) -> dict[str, Any]:
    import torchdiffeq

    torch.cuda.reset_peak_memory_stats()
    model = ltnode.build("lt-node", data, seed=0).to("cuda").train()
    x, y = synthetic_batch(model.spec["input"], 256, "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    calls = [0]
    model.field.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
    times = torch.cat([torch.zeros(1), torch.sort(torch.rand(10, generator=torch.Generator().manual_seed(0)) * 3).values]).to(
        "cuda"
    )
    times[-1] = 3.0

    def work() -> None:
        h = solve(model.field, model.stem(x), times, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
        loss = model.objective_parts(x, y, times[1:], model.outputs_at(h), 50_000).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()

    calls[0] = 0
    work()
    evaluations = calls[0]
    ms = milliseconds(work, max(5, repeats // 5), 2)
    way = "torchdiffeq adjoint" if adjoint else "torchdiffeq direct"
    return {
        "way": way,
        "device_ms": ms,
        "loop_ms": ms,
        "steps": None,
        "evaluations": evaluations,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def time_eager(data: str, repeats: int) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    model = ltnode.build("lt-node", data, seed=0, solver={"training": "adaptive"}).to("cuda").train()
    x, y = synthetic_batch(model.spec["input"], 256, "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def work() -> None:
        loss = model.loss(x, y, 50_000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()

    ms = milliseconds(work, max(5, repeats // 5), 2)
    s = model.solve_stats
    return {
        "way": "ltnode reference (two-phase, eager)",
        "device_ms": ms,
        "loop_ms": ms,
        "steps": s.n_accepted,
        "evaluations": s.n_evaluations,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def time_seeds(data: str, count: int, repeats: int) -> dict[str, Any]:
    """Several runs side by side, each on a stream of its own, a step of each in turn, as `ltnode.fit_seeds` has them."""
    torch.cuda.reset_peak_memory_stats()
    runs = []
    for _ in range(count):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step = graph_step("lt-node", data, "bf16", True, None, {})
            x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
            runs.append((stream, step, x, y, torch.arange(256, device="cuda")))
    counter = iter(range(10**9))

    def work() -> None:
        number = next(counter)
        for stream, step, x, y, indices in runs:
            with torch.cuda.stream(stream):
                step(Batch(x, y, indices, number, 0, 1.0))

    ms = throughput(work, 4 * repeats)
    n = len(runs[0][1].kept.edges) - 1
    return {
        "way": f"lt-node fused bf16 balanced grid, {count} seed{'s' if count > 1 else ''} side by side",
        "device_ms": ms,
        "loop_ms": ms,
        "steps": n,
        "evaluations": runs[0][1].tableau.evaluations(n),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def time_node_gp(data: str, repeats: int) -> list[dict[str, Any]]:
    """An eager step of NODE-GP, and of the NODE below it: the difference is the Gaussian processes' share."""
    rows = []
    for name in ("node-gp", "node"):
        torch.cuda.reset_peak_memory_stats()
        model = ltnode.build(name, data, seed=0).to("cuda").train()
        x, y = synthetic_batch(model.spec["input"], 256, "cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def work(model: Any = model, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> None:
            optimizer.zero_grad()
            model.loss(x, y, 50_000).backward()
            optimizer.step()

        ms = milliseconds(work, max(5, repeats // 5), 2)
        s = model.solve_stats
        rows.append(
            {
                "way": f"{name} eager fp32",
                "device_ms": ms,
                "loop_ms": ms,
                "steps": s.n_accepted,
                "evaluations": s.n_evaluations,
                "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
            }
        )
    rows[0]["gp_share"] = 1 - rows[1]["device_ms"] / rows[0]["device_ms"]
    return rows


def agreement(data: str, name: str, precision: str, fused: bool, steps: int = 200) -> dict[str, Any]:
    """Losses of the accelerated and of the reference step on the same batches, from the same start.

    Labels follow from the images (which tenth of the first pixels is brightest), so there is something to learn: on random
    labels two trainings drift apart from rounding alone.
    """
    step = graph_step(name, data, precision, fused, None, {})
    step.sgd.optimizer.param_groups[0]["lr"] = 0.01
    reference = ltnode.build(name, data, seed=0).to("cuda").train()
    config = step.config
    optimizer = make_optimizers(reference, config)["main"]
    optimizer.param_groups[0]["lr"] = 0.01
    differences, last = [], (0.0, 0.0)
    for i in range(steps):
        x, _ = synthetic_batch(reference.spec["input"], 256, "cuda", seed=i)
        y = x.flatten(1)[:, :100].reshape(256, 10, 10).mean(dim=2).argmax(dim=1)
        indices = torch.arange(256, device="cuda")
        times = reference.training_times(256, config.seed, i, indices)
        loss = reference.loss(x, y, 50_000, times=times)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reference.after_step()
        got = step(Batch(x, y, indices, i, 0, 1.0))["loss"]
        last = (float(loss.detach()), float(got))
        differences.append(abs(last[0] - last[1]) / max(abs(last[0]), 1e-3))
    return {
        "steps": steps,
        "largest_relative_difference": max(differences),
        "median": statistics.median(differences),
        "last": last,
        **step.counts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="cifar10", choices=("cifar10", "mnist"))
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="only the fused ways")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/training.py measures a CUDA device; this machine has none")
    five = [0.0, 0.6, 1.2, 1.8, 2.4, 3.0]
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print("  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)

    d, r = options.shapes, options.repeats
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch 256, S=10, rtol=atol=1e-2, {d} shapes")
    for precision in ("bf16", "tf32"):
        add(time_graph("lt-node", d, precision, True, five, r))
        add(time_graph("lt-node", d, precision, True, None, r))
    add(time_graph("alt-node", d, "bf16", True, five, r))
    add(time_graph("node", d, "bf16", True, None, r))
    for count in (1, 5):
        add(time_seeds(d, count, r))
    if not options.quick:
        add(time_graph("lt-node", d, "bf16", False, five, r))
        for row in time_node_gp(d, r):
            add(row)
        add(time_eager(d, r))
        add(time_torchdiffeq(d, r, adjoint=False))
        add(time_torchdiffeq(d, r, adjoint=True))
    for precision, fused in (("tf32", True), ("bf16", True), ("tf32", False)):
        print("agreement", precision, "fused" if fused else "graph", agreement(d, "lt-node", precision, fused))
    if options.json:
        options.json.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
