"""One training step on CUDA: reference, captured, fused, several seeds, and the peers in the same run.

usage: python benchmarks/training.py [--repeats 30] [--json FILE] [--quick]

Prints medians with accepted steps and evaluations of the field, start-up with an empty and with a filled cache
of compiled kernels, ratios to torchdiffeq's direct back-propagation, and how the losses of the accelerated steps follow those of
the reference. The record is written after every row; concurrent seeds come last, under a watchdog.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from own_process import rows_of_script
from training_claims import DIRECT, claims, print_claims

import ltnode
from ltnode.accelerate.graph_step import GraphStep
from ltnode.accelerate.recorder import CaptureError
from ltnode.models import execution
from ltnode.models.step import Batch, StepSettings
from ltnode.training import TrainConfig
from ltnode.training.concurrent import widen_device_queues
from ltnode.training.provenance import source_state
from ltnode.training.step import make_optimizers

CONFIG = TrainConfig(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
FIVE_STEPS = [0.0, 0.6, 1.2, 1.8, 2.4, 3.0]
MOST_SECONDS_CONCURRENT = 60
MOST_SECONDS_DIFFRAX = 150


def fresh_memory() -> None:
    """Reset the peak and free the memory of earlier variants: a step and its graph reference each other until collected."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


SETTLING = 300
"""Steps before a loop is timed."""


def synthetic_batch(spec: Any, batch: int, device: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, *spec["shape"], generator=generator).to(device)
    return x, torch.randint(0, spec["n_classes"], (batch,), generator=generator).to(device)


def end_times() -> torch.Tensor:
    """The peers' end-times (10,): sorted on (0, 3], and the last is 3."""
    times = torch.sort(torch.rand(10, generator=torch.Generator().manual_seed(0)) * 3).values
    times[-1] = 3.0
    return times


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
    """Return the milliseconds per call when many calls are queued, as in training."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3


def graph_step(
    name: str,
    data: str,
    precision: str,
    fused: bool,
    edges: list[float] | None,
    options: dict[str, Any],
    concurrent_runs: int = 1,
) -> GraphStep:
    model = ltnode.build(name, data, seed=0, **options).to("cuda").train()
    settings = StepSettings(precision, n_data=50_000)
    step = GraphStep(model, make_optimizers(model, CONFIG), settings, fused, concurrent_runs)
    if edges is not None:
        step.policy.grid.edges = edges
        step.policy.grid._next_attempt = 10**9
    return step


def time_graph(
    name: str, data: str, precision: str, fused: bool, edges: list[float] | None, repeats: int, **options: Any
) -> dict[str, Any]:
    fresh_memory()
    start = time.perf_counter()
    step = graph_step(name, data, precision, fused, edges, options)
    x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
    indices = torch.arange(256, device="cuda")
    counter = iter(range(10**9))

    def work() -> Any:
        return step(Batch(x, y, indices, next(counter)))

    work()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    # A new grid is still tried with fewer steps, which captures again: wait until it has settled.
    for _ in range(SETTLING):
        work()
    n = len(step.policy.grid.edges) - 1
    graph = step._graphs[(256, n)].graph
    return {
        "way": f"{name} {'fused' if fused else 'graph'} {precision}, {data}, " + (f"{n} steps" if edges else "balanced grid"),
        "device_ms": milliseconds(graph.replay, repeats),
        "loop_ms": throughput(work, 4 * repeats),
        "steps": n,
        "evaluations": step.policy.tableau.evaluations(n),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "start_s": ready,
        "masked": step.counts()["masked_updates"],
    }


def time_torchdiffeq(data: str, repeats: int, adjoint: bool) -> dict[str, Any]:
    import torchdiffeq

    fresh_memory()
    model = ltnode.build("lt-node", data, seed=0).to("cuda").train()
    x, y = synthetic_batch(model.spec["input"], 256, "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    calls = [0]
    model.field.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
    times = torch.cat([torch.zeros(1), end_times()]).to("cuda")

    def work() -> None:
        h = solve(model.field, model.stem(x), times, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
        posterior = model.posterior_terms(x, times[1:])
        loss = model.compose_loss(model.outputs_at(h), y, times[1:], posterior, 50_000).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()

    calls[0] = 0
    work()
    evaluations = calls[0]
    ms = milliseconds(work, max(5, repeats // 5), 2)
    way = "torchdiffeq adjoint" if adjoint else DIRECT
    return {
        "way": way,
        "device_ms": ms,
        "loop_ms": ms,
        "steps": None,
        "evaluations": evaluations,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def time_eager(data: str, repeats: int) -> dict[str, Any]:
    fresh_memory()
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
    """Time several concurrent runs on separate streams, one step of each in turn, as in `ltnode.fit_seeds`."""
    fresh_memory()
    runs = []
    for _ in range(count):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step = graph_step("lt-node", data, "bf16", True, None, {}, count)
            x, y = synthetic_batch(step.model.spec["input"], 256, "cuda")
            runs.append((stream, step, x, y, torch.arange(256, device="cuda")))
    counter = iter(range(10**9))

    def work() -> None:
        number = next(counter)
        for stream, step, x, y, indices in runs:
            with torch.cuda.stream(stream):
                step(Batch(x, y, indices, number))

    for _ in range(SETTLING):
        work()
    ms = throughput(work, 4 * repeats)
    n = len(runs[0][1].policy.grid.edges) - 1
    return {
        "way": f"lt-node fused bf16 balanced grid, {f'{count} seeds side by side' if count > 1 else '1 seed alone'}",
        "device_ms": ms,
        "loop_ms": ms,
        "steps": n,
        "evaluations": runs[0][1].policy.tableau.evaluations(n),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def time_node_gp(data: str, repeats: int) -> list[dict[str, Any]]:
    """Time an eager step of NODE-GP and of its NODE: the difference is the share of the Gaussian processes."""
    rows = []
    for name in ("node-gp", "node"):
        fresh_memory()
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


def agreement(data: str, name: str, ways: list[tuple[str, bool]], steps: int = 200) -> dict[str, dict[str, Any]]:
    """Compare the losses of accelerated steps and of the reference step on the same batches, from the same initial weights.

    Labels follow from the images (which tenth of the first pixels is brightest), so there is something to learn: on random
    labels two trainings drift apart from rounding alone.

    Args:
        data: Shapes.
        name: Model.
        ways: (precision, fused) of the accelerated steps.
        steps: Training steps.
    """
    accelerated = [graph_step(name, data, precision, fused, None, {}) for precision, fused in ways]
    reference = ltnode.build(name, data, seed=0).to("cuda").train()
    optimizer = make_optimizers(reference, CONFIG)["main"]
    for one in (optimizer, *(step.optimizer for step in accelerated)):
        one.param_groups[0]["lr"] = 0.01
    losses: list[list[float]] = []
    for i in range(steps):
        x, _ = synthetic_batch(reference.spec["input"], 256, "cuda", seed=i)
        y = x.flatten(1)[:, :100].reshape(256, 10, 10).mean(dim=2).argmax(dim=1)
        indices = torch.arange(256, device="cuda")
        times = reference.training_times(256, CONFIG.seed, i, indices)
        with execution.using(execution.REFERENCE):
            loss = reference.loss(x, y, 50_000, times=times)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reference.after_step()
        got = [step(Batch(x, y, indices, i))["loss"] for step in accelerated]
        losses.append([float(value) for value in (loss.detach(), *got)])
    found = {}
    for column, ((precision, fused), step) in enumerate(zip(ways, accelerated, strict=True), start=1):
        differences = [abs(row[column] - row[0]) / max(abs(row[0]), 1e-3) for row in losses]
        found[f"{'fused' if fused else 'graph'} {precision}"] = {
            "steps": steps,
            "largest_relative_difference": max(differences),
            "median": statistics.median(differences),
            "last": (losses[-1][0], losses[-1][column]),
            **step.counts(),
        }
    return found


def cold_start(cache: str) -> float:
    """Return the seconds until a new process without compiled kernels has ended its first step, which fills ``cache``."""
    command = [sys.executable, __file__, "--first-step"]
    done = subprocess.run(command, env=os.environ | _caches(cache), capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise SystemExit(f"the first step failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


def _caches(folder: str) -> dict[str, str]:
    """Environment variables of the folders in which Triton and ltnode keep compiled kernels."""
    return {"TRITON_CACHE_DIR": f"{folder}/triton", "XDG_CACHE_HOME": folder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["cifar10", "mnist"], choices=("cifar10", "mnist"))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="only the fused ways, without start-up, peers and agreement")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    widen_device_queues()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/training.py measures a CUDA device; this machine has none")
    if options.first_step:
        print(time_graph("lt-node", "cifar10", "bf16", True, FIVE_STEPS, 1)["start_s"])
        return
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **source_state(), "rows": rows}

    def save() -> None:
        record["claims"] = claims(rows)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")

    def add(row: dict[str, Any], shapes: str | None = None) -> None:
        rows.append(row if shapes is None else {**row, "shapes": shapes})
        print("  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
        save()

    r = options.repeats
    print(f"{record['device']}, torch {torch.__version__}, batch 256, S=10, rtol=atol=1e-2, medians of {r}")
    with tempfile.TemporaryDirectory() as cache:
        if not options.quick:
            add({"way": "start-up, nothing compiled", "start_s": cold_start(cache)})
            os.environ.update(_caches(cache))
        for d in options.shapes:
            rows_of(d, r, options.quick, lambda row, d=d: add(row, d))  # type: ignore[misc]
        if not options.quick:
            first = next(row for row in rows if "peak_gb" in row)
            add({"way": "start-up, kernels in the cache", "start_s": first["start_s"]})
            record["agreement"] = agreement(options.shapes[0], "lt-node", [("tf32", True), ("bf16", True), ("tf32", False)])
            for way, found in record["agreement"].items():
                print("agreement with the reference:", way, found)
        save()
        print_claims(record["claims"])
        concurrent_seeds(options.shapes[0], r, add)
    print_claims([claim for claim in record["claims"] if "seeds" in claim["claim"]])


def rows_of(d: str, repeats: int, quick: bool, add: Callable[[dict[str, Any]], None]) -> None:
    """Measure all variants on the shapes of one set, and fewer variants on the second set."""
    add(time_graph("lt-node", d, "bf16", True, FIVE_STEPS, repeats))
    add(time_graph("lt-node", d, "bf16", True, None, repeats))
    if d == "mnist":
        return
    add(time_graph("lt-node", d, "tf32", True, FIVE_STEPS, repeats))
    add(time_graph("lt-node", d, "tf32", True, None, repeats))
    add(time_graph("alt-node", d, "bf16", True, FIVE_STEPS, repeats))
    add(time_graph("node", d, "bf16", True, None, repeats))
    if quick:
        return
    add(time_graph("lt-node", d, "bf16", False, FIVE_STEPS, repeats))
    for way, peer in (
        ("gpytorch", lambda: time_node_gp(d, repeats)),
        ("torchdiffeq", lambda: [time_torchdiffeq(d, repeats, adjoint) for adjoint in (False, True)]),
        ("diffrax", lambda: rows_of_script("diffrax_peer.py", "--data", d, seconds=MOST_SECONDS_DIFFRAX)),
    ):
        if importlib.util.find_spec(way) is None:
            print(f"{way}: not installed, not measured")
            continue
        for row in peer():
            add(row)
    add(time_eager(d, repeats))
    if importlib.util.find_spec("gpytorch") is not None:
        try:
            add(time_graph("node-gp", d, "bf16", True, None, repeats))
        except CaptureError as error:
            print(f"node-gp is not captured: {error}")


def concurrent_seeds(d: str, repeats: int, add: Callable[[dict[str, Any]], None]) -> None:
    """Measure one seed and then five, at the very end: if they hang, the table is already written and the process is ended."""
    for count in (1, 5):
        faulthandler.dump_traceback_later(MOST_SECONDS_CONCURRENT, exit=True)
        add(time_seeds(d, count, repeats))
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
