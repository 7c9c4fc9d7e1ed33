"""Prediction on images: LT-NODE beside NODE to the same end-time, and SDE-Net's ten passes at once beside a loop.

usage: python benchmarks/prediction.py [--device cuda] [--images 10000] [--batch 1000] [--repeats 5] [--json FILE]

Medians after a warm-up, with the evaluations of the field beside every time. Weights are untrained: cost depends on shapes and on
the number of steps, which is printed. The claims at the end are ratios of this one run.
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
from ltnode.endtime import FixedTime

SAMPLES = 10
END = 3.0


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median wall time of a call, the device's work included."""

    def once() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(repeats))


def in_batches(model: ltnode.Model, x: torch.Tensor, size: int, samples: int = SAMPLES) -> int:
    """Predict everything; returns the evaluations of the field for the last batch."""
    stats = None
    for part in x.split(size):
        stats = model.predict(part, samples=samples).stats
    return stats.n_evaluations if stats else 0


def latent_time_models(device: torch.device) -> dict[str, ltnode.Model]:
    """LT-NODE whose largest quantile end-time is close to 3, and a NODE with the same weights that ends at 3."""
    lt = ltnode.build("lt-node", "cifar10", seed=0)
    node = ltnode.build("node", "cifar10", seed=0, end_time=FixedTime(END))
    node.load_state_dict({k: v for k, v in lt.state_dict().items() if not k.startswith("end_time.")}, strict=False)
    return {"LT-NODE, S = 10": lt.to(device).eval(), "NODE to T = 3": node.to(device).eval()}


def sde_loop(model: Any, x: torch.Tensor, size: int) -> None:
    """Ten passes one after the other, each with its own stem, diffusion and noise, as in the authors' code."""
    for part in x.split(size):
        for seed in range(SAMPLES):
            model.predict(part, samples=1, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{machine}, torch {torch.__version__}, {options.images} images of 3x32x32 in batches of {options.batch}, rtol=atol=1e-2"
    )
    x = torch.randn(options.images, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    rows: list[dict[str, Any]] = []

    def add(way: str, work: Callable[[], Any], evaluations: int | None) -> float:
        took = seconds(work, device, options.repeats)
        rows.append({"way": way, "seconds": took, "evaluations": evaluations})
        print(f"{way:38s} {took:8.3f} s   {evaluations if evaluations is not None else '':>4} evaluations", flush=True)
        return took

    times = {}
    for way, model in latent_time_models(device).items():
        evaluations = in_batches(model, x[: options.batch], options.batch)
        times[way] = add(way, lambda model=model: in_batches(model, x, options.batch), evaluations)  # type: ignore[misc]
    sde = ltnode.build("sde-net", "cifar10", seed=0).to(device).eval()
    together = add("SDE-Net, 10 passes as one batch", lambda: in_batches(sde, x, options.batch), sde.sde.steps)
    loop = add("SDE-Net, a loop over 10 passes", lambda: sde_loop(sde, x, options.batch), SAMPLES * sde.sde.steps)
    lt, node = times.values()
    claims = {
        "LT-NODE / NODE to the same end-time (at most 1.2)": lt / node,
        "SDE-Net: loop / one batch (at least 3)": loop / together,
    }
    for claim, ratio in claims.items():
        print(f"{claim}: {ratio:.2f}")
    if options.json:
        record = {"machine": machine, "torch": torch.__version__, "ltnode": ltnode.__version__, "rows": rows, "claims": claims}
        options.json.write_text(json.dumps(record | {"images": options.images, "batch": options.batch}, indent=1) + "\n")


if __name__ == "__main__":
    main()
