"""A training step on the CPU: variants of ltnode against torchdiffeq, in one run.

usage: python benchmarks/solver.py [--repeats 15] [--threads 2] [--out benchmarks/results] [--quick]

The work: batch 1500, S = 10 end-times on (0, 3), Dopri5 at rtol = atol = 1e-2, loss forward + backward + SGD step, for the
paper's 1-D network (BatchNorm, time input) and for the default one. The ways take turns within every round, so that a busy
machine slows all of them alike; printed are medians, ratios of the medians and evaluations of the field. The floor is the bare
layers: the field called as often as the step calls it, forward and backward, with stem and head.

Then the cost against the number of end-times and against the tolerance, as a table and a plot.
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

import ltnode

BATCH, SAMPLES = 1500, 10
NETWORKS = {"paper": "the paper's 1-D network", "default": "the default network"}


def network(name: str, **solver: Any) -> ltnode.LatentTimeODE:
    model = ltnode.build(
        "lt-node", "synthetic", preset=name, seed=0, solver={"training": "adaptive", "clip_last": True, **solver}
    )
    assert isinstance(model, ltnode.LatentTimeODE)
    return model.train()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    data = ltnode.data.gap_data(BATCH, seed=0)
    return data.train.x[:BATCH], data.train.y[:BATCH]


def end_times(samples: int = SAMPLES) -> torch.Tensor:
    """Stratified times whose largest is the end of the window: every way solves to the same end."""
    return torch.linspace(3.0 / samples, 3.0, samples)


class Way:
    """One way to do the step, with the evaluations it needs."""

    def __init__(
        self, name: str, model: ltnode.LatentTimeODE, states: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        self.name, self.model, self._states = name, model, states
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        self.evaluations = 0
        model.field.register_forward_hook(self._count)
        self.samples: list[float] = []

    def _count(self, *_: Any) -> None:
        self.evaluations += 1

    def step(self, x: torch.Tensor, y: torch.Tensor, times: torch.Tensor) -> None:
        states = self._states(self.model.initial_state(x), times)
        posterior = self.model.posterior_terms(x, times)
        loss = self.model.compose_loss(self.model.outputs_at(states), y, times, posterior, BATCH).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.model.after_step()


def our_way(name: str, preset: str, training: str, edges: list[float] | None = None) -> Way:
    model = network(preset, training=training)
    if edges is not None:

        def states(h: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            return ltnode.odesolve(model.field, h, times, grid=edges).states

        return Way(name, model, states)
    return Way(name, model, lambda h, times: model.solve(h, times).states)


def torchdiffeq_way(name: str, preset: str, adjoint: bool) -> Way:
    import torchdiffeq

    model = network(preset)
    solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint

    def states(h: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return solve(model.field, h, torch.cat([times.new_zeros(1), times]), rtol=1e-2, atol=1e-2, method="dopri5")[1:]

    return Way(name, model, states)


def bare_layers(name: str, preset: str, evaluations: int) -> Way:
    """The floor: stem, the field called one after the other as often as a solve calls it, head on S states."""
    model = network(preset)

    def states(h: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        for i in range(evaluations):
            h = model.field(torch.tensor(3.0 * i / evaluations), h)
        return h.expand(len(times), *h.shape)

    return Way(name, model, states)


def torchdiffeq_edges(preset: str) -> list[float]:
    """The accepted steps of torchdiffeq's first solve, for a comparison at equal evaluations."""
    import torchdiffeq

    model, (x, _) = network(preset), batch()
    accepted: list[float] = [0.0]

    class Recording(torch.nn.Module):
        def __init__(self, field: torch.nn.Module) -> None:
            super().__init__()
            self.field = field

        def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.field(t, h)

        def callback_accept_step(self, t0: torch.Tensor, y0: torch.Tensor, dt: torch.Tensor) -> None:
            accepted.append(float(t0 + dt))

    with torch.no_grad():
        torchdiffeq.odeint(
            Recording(model.field), model.initial_state(x), torch.tensor([0.0, 3.0]), rtol=1e-2, atol=1e-2, method="dopri5"
        )
    accepted[-1] = max(accepted[-1], 3.0)
    return accepted


def compare(preset: str, repeats: int) -> list[dict[str, Any]]:
    x, y = batch()
    times = end_times()
    edges = torchdiffeq_edges(preset)
    ways = [
        torchdiffeq_way("torchdiffeq direct", preset, adjoint=False),
        torchdiffeq_way("torchdiffeq adjoint", preset, adjoint=True),
        our_way("ltnode reference (two-phase)", preset, "adaptive"),
        our_way("ltnode, torchdiffeq's own steps", preset, "adaptive", edges),
        our_way("ltnode kept balanced grid", preset, "kept"),
    ]
    for way in ways:
        for _ in range(3):  # the first steps of training change the field the most
            way.evaluations = 0
            way.step(x, y, times)
    counts = [way.evaluations for way in ways]
    floors = [bare_layers(f"bare layers, {counts[i]} evaluations", preset, counts[i]) for i in (3, 4)]
    for way in floors:
        way.step(x, y, times)
    ways += floors
    counts += [counts[3], counts[4]]
    for _ in range(repeats):
        for way in ways:
            start = time.perf_counter()
            way.step(x, y, times)
            way.samples.append((time.perf_counter() - start) * 1e3)
    reference = statistics.median(ways[0].samples)
    rows = []
    for way, evaluations in zip(ways, counts, strict=True):
        ms = statistics.median(way.samples)
        rows.append({"network": preset, "way": way.name, "ms": ms, "speed_up": reference / ms, "evaluations": evaluations})
    return rows


def checks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims, each with what was measured."""
    by = {(r["network"], r["way"]): r["ms"] for r in rows}
    out = []
    for preset in NETWORKS:
        direct, adjoint = by[preset, "torchdiffeq direct"], by[preset, "torchdiffeq adjoint"]
        kept, same = by[preset, "ltnode kept balanced grid"], by[preset, "ltnode, torchdiffeq's own steps"]
        floors = [r for r in rows if r["network"] == preset and r["way"].startswith("bare")]
        for claim, value, bound, larger in (
            ("kept balanced grid against torchdiffeq direct", direct / kept, 2.0, True),
            ("equal evaluations against torchdiffeq direct", direct / same, 1.2, True),
            ("kept balanced grid against torchdiffeq adjoint", adjoint / kept, 8.0, True),
            ("equal evaluations against their bare layers", same / floors[0]["ms"], 1.4, False),
            ("kept balanced grid against its bare layers", kept / floors[1]["ms"], 1.4, False),
        ):
            met = value >= bound if larger else value <= bound
            out.append(
                {"network": preset, "claim": claim, "ratio": value, "wanted": f"{'>=' if larger else '<='} {bound}", "met": met}
            )
    return out


def kept_memory(preset: str) -> list[dict[str, Any]]:
    """What each way keeps for the backward pass of one step, in MB: the distinct storages that autograd saves."""
    x, y = batch()
    rows = []
    for way in (
        torchdiffeq_way("torchdiffeq direct", preset, adjoint=False),
        our_way("ltnode reference (two-phase)", preset, "adaptive"),
        our_way("ltnode kept balanced grid", preset, "kept"),
    ):
        way.step(x, y, end_times())  # a training grid is searched in the first step
        storages: dict[int, int] = {}

        def note(tensor: torch.Tensor, storages: dict[int, int] = storages) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            way.step(x, y, end_times())
        rows.append({"network": preset, "way": way.name, "kept_mb": sum(storages.values()) / 2**20})
    return rows


def rough_network(tolerance: float) -> ltnode.LatentTimeODE:
    """The default network with a field of four times the weights: at its start it is so smooth that no tolerance matters."""
    model = network("default", rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        for p in model.field.parameters():
            p.mul_(4.0)
    return model


def scaling(repeats: int) -> list[dict[str, Any]]:
    """Cost against S and tolerance, default network with a rougher field, reference solve."""
    x, y = batch()
    rows = []
    for samples in (1, 10, 100):
        model = rough_network(1e-2)
        way = Way("ltnode", model, lambda h, times, model=model: model.solve(h, times).states)
        rows.append({"samples": samples, "tolerance": 1e-2, **_time_one(way, x, y, end_times(samples), repeats)})
    for tolerance in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        model = rough_network(tolerance)
        way = Way("ltnode", model, lambda h, times, model=model: model.solve(h, times).states)
        rows.append({"samples": SAMPLES, "tolerance": tolerance, **_time_one(way, x, y, end_times(), repeats)})
    return rows


def _time_one(way: Way, x: torch.Tensor, y: torch.Tensor, times: torch.Tensor, repeats: int) -> dict[str, Any]:
    way.step(x, y, times)
    samples = []
    for _ in range(repeats):
        way.evaluations = 0
        start = time.perf_counter()
        way.step(x, y, times)
        samples.append((time.perf_counter() - start) * 1e3)
    return {"ms": statistics.median(samples), "evaluations": way.evaluations}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), constrained_layout=True)
    by_samples, by_tolerance = rows[:3], rows[3:]
    left.plot([r["samples"] for r in by_samples], [r["ms"] for r in by_samples], "o-")
    left.set(xscale="log", xlabel="end-times S", ylabel="training step (ms)", ylim=(0, None), title="tolerance 1e-2")
    right.plot([r["tolerance"] for r in by_tolerance], [r["ms"] for r in by_tolerance], "o-")
    for r in by_tolerance:
        right.annotate(
            f"{r['evaluations']} evals", (r["tolerance"], r["ms"]), textcoords="offset points", xytext=(4, 6), fontsize=7
        )
    right.set(xscale="log", xlabel="rtol = atol", ylabel="training step (ms)", ylim=(0, None), title=f"S = {SAMPLES}")
    right.invert_xaxis()
    figure.savefig(path)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    keys = list(rows[0])
    cells = [[f"{v:.2f}" if isinstance(v, float) and v >= 0.01 else str(v) for v in r.values()] for r in rows]
    widths = [max(len(k), *(len(c[i]) for c in cells)) for i, k in enumerate(keys)]
    for line in (keys, *cells):
        print("  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true", help="no scaling table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, S = {SAMPLES}, rtol = atol = 1e-2, T <= 3")
    rows = [row for preset in NETWORKS for row in compare(preset, options.repeats)]
    show("one training step (speed_up against torchdiffeq direct)", rows)
    claims = checks(rows)
    show("claims", claims)
    memory = [row for preset in NETWORKS for row in kept_memory(preset)]
    show("memory kept for the backward pass of one step", memory)
    result = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": options.threads,
        "rows": rows,
        "claims": claims,
        "memory": memory,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.quick:
        result["scaling"] = scaling(max(3, options.repeats // 3))
        show("cost against end-times and tolerance (default network with a rougher field, reference solve)", result["scaling"])
        plot(result["scaling"], options.out / "solver_scaling.svg")
    (options.out / "solver.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
