"""Prediction on images: LT-NODE against NODE with the same end-time, and SDE-Net's ten passes at once against a loop.

usage: python benchmarks/prediction.py [--device cuda] [--images 10000] [--batch 1000 10000] [--repeats 5] [--json FILE]
                                       [--run zoo/lt-node-cifar10 --data FOLDER]

Medians after a warm-up, with the evaluations of the field and the largest end-time for every time. The cost depends on shapes and
on the number of steps; without a run the weights are untrained and the images noise, with one they are its weights and CIFAR10
test images from FOLDER. How much SDE-Net gains depends on the batch: a small one leaves the device idle, so several are measured.
The claims at the end are of this one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.endtime import FixedTime
from ltnode.training.provenance import source_state

SAMPLES = 10
END = 3.0
MOST_SECONDS = 0.1
"""For 10,000 images by LT-NODE on an H200."""


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


def in_batches(model: ltnode.Model, x: torch.Tensor, size: int, samples: int = SAMPLES) -> ltnode.Prediction:
    """Predict everything; returns the prediction of the last batch."""
    return [model.predict(part, samples=samples) for part in x.split(size)][-1]


def latent_time_models(run: Path | None, device: torch.device) -> dict[str, ltnode.Model]:
    """LT-NODE whose largest quantile end-time is just below 3, and a NODE with the same weights and grid that ends at 3."""
    lt = ltnode.build("lt-node", "cifar10", seed=0) if run is None else ltnode.load(run)
    if not isinstance(lt, ltnode.LatentTimeODE):
        raise SystemExit(f"{run} is not a latent-time model")
    node = ltnode.build("node", "cifar10", seed=0, end_time=FixedTime(END))
    node.load_state_dict({k: v for k, v in lt.state_dict().items() if not k.startswith("end_time.")}, strict=False)
    with torch.no_grad():  # most of a Gamma posterior beyond the window: truncated, it ends at the window's end
        lt.end_time.alpha.fill_(20.0)
        lt.end_time.beta.fill_(2.0)
    return {"LT-NODE, S = 10": lt.to(device).eval(), "NODE to T = 3": node.to(device).eval()}


def network_inputs(count: int, data: Path | None, device: torch.device) -> torch.Tensor:
    """Network inputs: noise, or the first test images of CIFAR10."""
    if data is None:
        return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    cifar10 = ltnode.data.load("cifar10", data)
    return cifar10.prepare(cifar10.test.x[:count].to(device))


def sde_loop(model: Any, x: torch.Tensor, size: int) -> None:
    """Ten passes one after the other, each with its own stem, diffusion and noise, as in the authors' code."""
    for part in x.split(size):
        for seed in range(SAMPLES):
            model.predict(part, samples=1, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1000, 10_000], help="batch sizes for LT-NODE and NODE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sde-batches", type=int, nargs="+", default=[32, 256, 1000], help="batch sizes for SDE-Net")
    parser.add_argument("--run", type=Path, help="folder of a trained LT-NODE for CIFAR10")
    parser.add_argument("--data", type=Path, help="folder of the image sets")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, {options.images} images of 3x32x32, rtol=atol=1e-2")
    x = network_inputs(options.images, options.data, device)
    rows: list[dict[str, Any]] = []

    def add(way: str, batch: int, images: int, work: Callable[[], Any], evaluations: int, largest: float | None = None) -> float:
        took = seconds(work, device, options.repeats)
        row = {"way": way, "batch": batch, "images": images, "seconds": took, "evaluations": evaluations, "largest_time": largest}
        rows.append(row)
        until = "" if largest is None else f" to T = {largest:.2f}"
        print(f"{way:32s} batch {batch:5d} {took:8.3f} s for {images} images, {evaluations:3d} evaluations{until}", flush=True)
        return took

    claims: dict[str, float] = {}
    models = latent_time_models(options.run, device)
    for batch in options.batch:
        times = {}
        for way, model in models.items():
            last = in_batches(model, x[:batch], batch)
            assert last.stats is not None
            work = partial(in_batches, model, x, batch)
            times[way] = add(way, batch, len(x), work, last.stats.n_evaluations, float(last.times.max()))
        lt, node = times.values()
        claims[f"LT-NODE, batches of {batch}: seconds for {len(x)} images (at most {MOST_SECONDS} for 10,000)"] = lt
        claims[f"LT-NODE / NODE to the same end-time, batches of {batch} (at most 1.2)"] = lt / node
    sde = ltnode.build("sde-net", "cifar10", seed=0).to(device).eval()
    for batch in options.sde_batches:
        some = x[: 10 * batch]
        together = add("SDE-Net, 10 passes as one batch", batch, len(some), partial(in_batches, sde, some, batch), sde.sde.steps)
        loop = add("SDE-Net, a loop over 10 passes", batch, len(some), partial(sde_loop, sde, some, batch), 10 * sde.sde.steps)
        claims[f"SDE-Net, batches of {batch}: loop / one batch (at least 3)"] = loop / together
    for claim, value in claims.items():
        print(f"{claim}: {value:.3f}")
    if options.json:
        record = {
            "machine": machine,
            "torch": torch.__version__,
            **source_state(),
            "ltnode": ltnode.__version__,
            "run": str(options.run or ""),
        }
        options.json.write_text(json.dumps(record | {"rows": rows, "claims": claims}, indent=1) + "\n")


if __name__ == "__main__":
    main()
