"""One training and five concurrent ones through `ltnode.fit_seeds`, with augmentation, schedule and log: milliseconds per step.

usage: python benchmarks/seeds.py [--seeds 5] [--repeats 3] [--json FILE]

LT-NODE on random images of CIFAR10's shape, batch 256, bf16. The time of a step is the difference between a long and a short
training, over the difference of their steps: what both do once, such as compiling and capturing, is in neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.data import SPECS, Dataset, Split
from ltnode.training import fit_seeds
from ltnode.training.concurrent import widen_device_queues
from ltnode.training.provenance import source_state

BATCH, BATCHES = 256, 50
SHORT, LONG = 8, 28
"""Epochs of the two trainings; the shorter one is long enough for its grid to have settled."""
LIMIT = 2.5


def random_images(name: str = "cifar10") -> Dataset:
    """Return random images and labels for one epoch, with the shape, normalisation and augmentation of a set."""
    spec, generator = SPECS[name], torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        x = torch.randint(0, 256, (n, *spec.shape), dtype=torch.uint8, generator=generator)
        return Split(x, torch.randint(0, 10, (n,), generator=generator))

    parts = {"train": split(BATCH * BATCHES), "test": split(BATCH)}
    return Dataset("random", "classification", **parts, n_classes=10, normalise=spec.normalise, augment=spec.augment)


def train(data: Dataset, seeds: int, epochs: int) -> None:
    """Train a number of seeds and discard the results."""
    config = replace(
        ltnode.train_preset("lt-node", "cifar10", "paper"), data=data.name, epochs=epochs, milestones=(), precision="bf16",
        device="cuda", batch_size=BATCH, log_every=1000,
    )  # fmt: skip
    fit_seeds(lambda seed: ltnode.build("lt-node", "cifar10", seed=seed), data, config, range(seeds))
    torch.cuda.synchronize()


def step_milliseconds(run: Callable[[int], None], short: int, long: int, steps_per_epoch: int) -> float:
    """Return the milliseconds of a step, from the times of ``run`` with two numbers of epochs."""
    seconds = {}
    for epochs in (short, long):
        began = time.perf_counter()
        run(epochs)
        seconds[epochs] = time.perf_counter() - began
    return (seconds[long] - seconds[short]) / ((long - short) * steps_per_epoch) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    widen_device_queues()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/seeds.py measures a CUDA device; this machine has none")
    data = random_images()
    for count in (1, options.seeds):  # compiles what the first trainings would compile
        train(data, count, 1)
    found = {
        count: [
            step_milliseconds(lambda epochs, count=count: train(data, count, epochs), SHORT, LONG, BATCHES)  # type: ignore[misc]
            for _ in range(options.repeats)
        ]
        for count in (1, options.seeds)
    }
    medians = {count: statistics.median(values) for count, values in found.items()}
    ratio = medians[options.seeds] / medians[1]
    for count, values in found.items():
        print(f"{count} at once: {medians[count]:.3f} ms a step of all of them ({', '.join(f'{v:.3f}' for v in values)})")
    print(f"ratio {ratio:.2f}" + (f", {'at most' if ratio <= LIMIT else 'NOT at most'} {LIMIT}" if options.seeds == 5 else ""))
    if options.json:
        record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **source_state()}
        record |= {"milliseconds": found, "ratio": ratio}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
