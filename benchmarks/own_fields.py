"""Training steps around three fields of a user (`fields.py`), in every way, with torchdiffeq and diffrax in the same run.

usage: python benchmarks/own_fields.py [--fields MLP Convolutions Attention] [--repeats 20] [--without-peers] [--json FILE]

LT-NODE around each field, states as inputs, a linear classifier as head, batch 256, S = 10, rtol = atol = 1e-2, on one GPU. Times
are wall times of a step, medians over repeats of 20 steps that are queued one after the other. Captured ways are measured on the
grid that the tolerance needs, and once on five steps, because fields that have learnt something need more than one. torchdiffeq
and diffrax choose their own steps at the same tolerance; their evaluations stand beside them. Compiling is not timed, but how
long the first steps take is stated.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.accelerate.plan import Accelerate
from ltnode.accelerate.step import accelerated_step
from ltnode.device import Precision, product_precision
from ltnode.models.step import Batch, EagerStep, StepSettings
from ltnode.speed.subject import Subject, own_field
from ltnode.training.provenance import device_name, source_state

STATES = {"MLP": (64,), "Convolutions": (64, 8, 8), "Attention": (64, 128)}
BATCH, EXAMPLES, STEPS = 256, 50_000, 20
WANTED_BF16_MS = {"MLP": 0.45, "Convolutions": 2.0, "Attention": 2.5}
WANTED_ADAM, WANTED_FIVE_STEPS, WANTED_DIFFRAX, WANTED_TORCHDIFFEQ = 1.15, 4.5, 3.0, 20.0
FIVE = 5


def subject_of(name: str) -> Subject:
    """An LT-NODE around a field of `fields.py`."""
    return own_field(f"{Path(__file__).with_name('fields.py')}:{name}", STATES[name])


def batch_of(name: str) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH, *STATES[name], generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
    return Batch(x.cuda(), y.cuda(), torch.arange(BATCH, device="cuda"), 0)


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-5)
    return torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)


def median_ms(step: Callable[[int], Any], repeats: int) -> tuple[float, float]:
    """Median time of a step, and seconds of the first three."""
    began = time.perf_counter()
    for number in range(3):
        step(number)
    torch.cuda.synchronize()
    first, samples = time.perf_counter() - began, []
    for _ in range(repeats):
        start = time.perf_counter()
        for number in range(STEPS):
            step(number + 3)
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / STEPS * 1e3)
    return statistics.median(samples), first


def own_step(name: str, way: Accelerate, optimizer: str, precision: Precision, steps: int | None, repeats: int) -> dict[str, Any]:
    """Time one way of ltnode; ``steps`` fixes the number of equal steps of the training grid."""
    model = subject_of(name).model({}).cuda().train()
    assert isinstance(model, ltnode.LatentTimeODE)
    if steps is not None:
        end = model.end_time.window[1]
        state = model.training_grid.state_dict()
        equal = [end * m / steps for m in range(steps + 1)]
        model.training_grid.load_state_dict({**state, "edges": equal, "next_attempt": 10**9})
    eager = EagerStep(model, {"main": optimizer_of(optimizer, model)}, StepSettings(precision, 0, EXAMPLES))
    batch = batch_of(name)
    step = eager if way == "off" else accelerated_step(eager, batch.x[:1], way)

    def one(number: int) -> None:
        step(Batch(batch.x, batch.y, batch.indices, number))

    with product_precision(precision):
        ms, first = median_ms(one, repeats)
    stats = model.solve_stats
    assert stats is not None
    kind = {"off": "training grid, eager", "graph": "captured layers", "compiled": "compiled layers"}[way]
    row = {"field": name, "way": kind, "optimizer": optimizer, "precision": precision, "ms": round(ms, 4)}
    return row | {"steps": stats.n_accepted, "evaluations": stats.n_evaluations, "first_s": round(first, 2)}


def torchdiffeq_step(name: str, repeats: int) -> dict[str, Any]:
    """torchdiffeq's odeint with direct back-propagation and Adam, in float32."""
    import torchdiffeq  # type: ignore[import-untyped]
    from training import end_times

    model = subject_of(name).model({}).cuda().train()
    assert isinstance(model, ltnode.LatentTimeODE)
    optimizer, batch, ends = optimizer_of("adam", model), batch_of(name), end_times().cuda()
    times, calls = torch.cat([ends.new_zeros(1), ends]), [0]
    counting = model.field.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))

    def one(number: int) -> None:
        states = torchdiffeq.odeint(model.field, batch.x, times, rtol=1e-2, atol=1e-2, method="dopri5")[1:]
        posterior = model.posterior_terms(batch.x, ends)
        loss = model.compose_loss(model.outputs_at(states), batch.y, ends, posterior, EXAMPLES).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()

    one(0)
    evaluations = calls[0]
    counting.remove()
    ms, first = median_ms(one, max(2, repeats // 4))
    row = {"field": name, "way": "torchdiffeq, direct", "optimizer": "adam", "precision": "fp32", "ms": round(ms, 4)}
    return row | {"steps": (evaluations - 2) // 6, "evaluations": evaluations, "first_s": round(first, 2)}


def diffrax_steps(name: str, repeats: int) -> list[dict[str, Any]]:
    """The rows of `diffrax_fields.py`; none, with the reason in the log, where it cannot run."""
    command = [sys.executable, str(Path(__file__).with_name("diffrax_fields.py")), name, "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        logging.warning("diffrax, %s: %s", name, done.stderr.strip().splitlines()[-1:] or done.returncode)
    return [
        {
            "field": name,
            "way": row["way"],
            "optimizer": "sgd",
            "precision": "fp32 (TF32 products)",
            "ms": round(row["loop_ms"], 4),
        }
        | {"steps": row["steps"], "evaluations": row["evaluations"], "versions": row["versions"]}
        for row in rows
    ]


def rows_of(name: str, repeats: int, peers: bool) -> list[dict[str, Any]]:
    ways: list[tuple[Accelerate, str, Precision, int | None]] = [
        ("off", "adam", "fp32", None),
        *(("graph", optimizer, precision, None) for optimizer in ("sgd", "adam") for precision in ("fp32", "bf16")),
        *(("compiled", optimizer, precision, None) for optimizer in ("sgd", "adam") for precision in ("fp32", "tf32", "bf16")),
        ("graph", "sgd", "bf16", FIVE),
        ("compiled", "sgd", "bf16", FIVE),
        ("compiled", "sgd", "bf16", 1),
    ]
    rows = []
    for way, optimizer, precision, steps in ways:
        rows.append(own_step(name, way, optimizer, precision, steps, repeats))
        show(rows[-1])
    if not peers:
        return rows
    for row in (torchdiffeq_step(name, repeats), *diffrax_steps(name, repeats)):
        rows.append(row)
        show(row)
    return rows


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['field']:13s} {row['way']:28s} {row['optimizer']:5s} {row['precision']:20s} {row['ms']:8.3f} ms  "
        f"{row['steps']} steps, {row['evaluations']} evaluations  first {row.get('first_s', '')}",
        flush=True,
    )


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is asked for, with what was measured; what has no wish stands beside it."""
    result = []
    for name in dict.fromkeys(row["field"] for row in rows):
        mine = [row for row in rows if row["field"] == name]
        ours = [row for row in mine if row["way"] == "compiled layers"]

        def ms(optimizer: str, precision: str, steps: int | None = None, ours: list[dict[str, Any]] = ours) -> float:
            found = [r for r in ours if (r["optimizer"], r["precision"]) == (optimizer, precision)]
            return float(found[0]["ms"] if steps is None else [r["ms"] for r in found if r["steps"] == steps][-1])

        one, five = ms("sgd", "bf16", 1), ms("sgd", "bf16", FIVE)
        torchdiffeq = next(row["ms"] for row in mine if row["way"].startswith("torchdiffeq"))
        diffrax = min((row["ms"] for row in mine if row["way"].startswith("diffrax")), default=None)
        limits = [
            ("ms of a step, bf16", one, WANTED_BF16_MS[name]),
            ("Adam over SGD, fp32", ms("adam", "fp32") / ms("sgd", "fp32"), WANTED_ADAM),
            ("Adam over SGD, bf16", ms("adam", "bf16") / ms("sgd", "bf16"), WANTED_ADAM),
            ("five steps over one, bf16", five / one, WANTED_FIVE_STEPS),
        ]
        factors: list[tuple[str, float, float | None]] = [
            ("torchdiffeq over ltnode, Adam, bf16", torchdiffeq / ms("adam", "bf16"), WANTED_TORCHDIFFEQ),
            ("torchdiffeq over ltnode, Adam, fp32", torchdiffeq / ms("adam", "fp32"), None),
        ]
        if diffrax is not None:
            factors.append(("fastest diffrax over ltnode, SGD, bf16", diffrax / one, WANTED_DIFFRAX))
            factors.append(("fastest diffrax over ltnode, SGD, tf32", diffrax / ms("sgd", "tf32"), None))
        judged = [(what, value, wanted, value <= wanted) for what, value, wanted in limits]
        judged += [(what, value, wanted, None if wanted is None else value >= wanted) for what, value, wanted in factors]  # type: ignore[misc]
        for what, value, wish, met in judged:
            result.append({"field": name, "what": what, "value": round(value, 3), "wanted": wish, "met": met})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", nargs="+", default=list(STATES), choices=list(STATES))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--without-peers", action="store_true", help="for example to fill the caches of the compiler")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs CUDA; `ltnode bench --field` measures a field on any device")
    rows: list[dict[str, Any]] = []
    for name in options.fields:
        rows += rows_of(name, options.repeats, not options.without_peers)
    if options.without_peers:
        return
    found = claims(rows)
    for claim in found:
        asked = "" if claim["wanted"] is None else f" (asked for: {claim['wanted']}, {'met' if claim['met'] else 'MISSED'})"
        print(f"{claim['field']}: {claim['what']}: {claim['value']}{asked}")
    if options.json is not None:
        about = {"device": device_name(torch.device("cuda")), "torch": torch.__version__, **source_state()}
        record = {**about, "batch": BATCH, "samples": 10, "tolerance": 0.01, "rows": rows, "claims": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
