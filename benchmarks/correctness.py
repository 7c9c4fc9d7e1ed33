"""The fused path against the float64 reference, and whole trainings against those of the reference path.

usage: python benchmarks/correctness.py [--json FILE] [--data FOLDER] [--part kernels|models|training ...] [--device cpu]

kernels   trajectory of the convolutional field: states, error norms and all gradients, per precision, 1 to 10 solver steps,
          states of 6x6 and 7x7, on fresh random inputs, in memory filled with NaN beforehand
models    loss, predictions and the gradient of every parameter of LT-NODE, ALT-NODE and NODE: stem, trajectory, interpolation,
          head and posterior
training  3 epochs on some CIFAR10 images from 5 seeds: fused in bf16, the paper's two-phase solve in fp32, and the fused seeds
          side by side; needs --data (or LTNODE_DATA), the folder of the image sets

On a CPU the kernels are left out, models go through their layers and trainings are eager and in fp32: a rehearsal, no evidence.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.device import product_precision
from ltnode.training import TrainConfig, fit_seeds, train_preset
from ltnode.training.provenance import source_state

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "accelerate"))  # the comparisons are those of the tests
from kernels.comparisons import trajectory_errors
from kernels.model_comparison import model_errors

PRECISIONS = ("fp32", "tf32", "bf16")
STEPS = tuple(range(1, 11))
MODELS = ("lt-node", "alt-node", "node")
MOST_SECONDS_A_TRAINING = 150
"""Seconds after which the trainings of one way count as hung; what was found until then is in the record."""


def trajectories(steps: Iterable[int], batch: int, device: str) -> list[dict[str, Any]]:
    """One row per precision, side of the state and number of steps."""
    rows = []
    for precision in PRECISIONS:
        for side in (6, 7):
            for n in steps:
                edges = [3.0 * m / n for m in range(n + 1)]
                with product_precision(precision):
                    errors = trajectory_errors(64, side, batch, edges, "dopri5", precision, device, poison=True)
                rows.append({"precision": precision, "side": side, "steps": n, "errors": errors})
    return rows


def whole_models(steps: Iterable[int], batch: int, device: str) -> list[dict[str, Any]]:
    """One row per model, precision and number of steps."""
    return [
        {
            "model": name,
            "data": data,
            "precision": precision,
            "steps": n,
            "errors": model_errors(name, data, batch, n, precision, device, fused=device != "cpu", seed=n),
        }
        for name, data in (*((name, "cifar10") for name in MODELS), ("lt-node", "mnist"))
        for precision in PRECISIONS
        for n in steps
    ]


def worst(rows: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """The largest error of every kind over the rows that agree in the keys; all parameters' gradients are one kind."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        kinds = found.setdefault(tuple(row[key] for key in keys), {})
        for name, error in row["errors"].items():
            kind = "worst parameter's gradient" if name.startswith("grad ") else name
            # NaN must be the largest error: an output that was never written is NaN.
            kinds[kind] = error if not error <= kinds.get(kind, -1.0) else kinds[kind]
    return [dict(zip(keys, values, strict=True)) | {"largest": kinds} for values, kinds in found.items()]


def configuration(options: argparse.Namespace, **changes: Any) -> TrainConfig:
    """The paper's training, cut to a few epochs on some of the images, with a line of the log per epoch."""
    per_epoch = -(-options.limit // options.batch)
    return train_preset("lt-node", "cifar10", "paper").replace(
        epochs=options.epochs,
        limit=options.limit,
        batch_size=options.batch,
        log_every=per_epoch,
        checkpoint_epochs=None,
        device=options.device,
        **changes,
    )


def ended(run: ltnode.Run, data: ltnode.data.Dataset, n_test: int) -> dict[str, float]:
    """Training loss over the last epoch, and the error on test images in percent."""
    device = next(run.model.parameters()).device
    wrong = 0
    for x, y in zip(data.test.x[:n_test].split(500), data.test.y[:n_test].split(500), strict=True):
        probs = run.model.predict(data.prepare(x.to(device))).probs
        wrong += int((probs.argmax(dim=1).cpu() != y.cpu()).sum())
    counts = {key: run.history[-1][key] for key in ("masked_updates", "grid_searches") if key in run.history[-1]}
    return {"loss": run.history[-1]["loss"], "test_error": 100 * wrong / len(data.test.y[:n_test]), **counts}


def trainings(options: argparse.Namespace, record: Callable[[str, Any], None]) -> None:
    """Three ways to train the same seeds; every way is recorded as soon as it has ended."""
    data = ltnode.data.load("cifar10", options.data)
    seeds = list(range(options.seeds))
    on_cpu = options.device == "cpu"
    fast = configuration(options, precision="fp32" if on_cpu else "bf16", accelerate="auto" if on_cpu else "fused")
    reference = configuration(options, precision="fp32", accelerate="off")
    ours = "kept grid fp32" if on_cpu else "fused bf16"
    together = f"{ours}, seeds side by side"

    def fused_model(seed: int) -> ltnode.Model:
        return ltnode.build("lt-node", "cifar10", seed=seed)

    def two_phase_model(seed: int) -> ltnode.Model:
        return ltnode.build("lt-node", "cifar10", seed=seed, solver={"training": "adaptive"})

    ways: dict[str, Callable[[], list[ltnode.Run]]] = {
        ours: lambda: [ltnode.fit(fused_model(s), data, fast.replace(seed=s)) for s in seeds],
        "reference fp32": lambda: [ltnode.fit(two_phase_model(s), data, reference.replace(seed=s)) for s in seeds],
        together: lambda: fit_seeds(fused_model, data, fast, seeds),
    }
    found: dict[str, list[dict[str, float]]] = {}
    for way, train in ways.items():
        faulthandler.dump_traceback_later(MOST_SECONDS_A_TRAINING, exit=True)
        began = time.perf_counter()
        runs = train()
        took = time.perf_counter() - began
        found[way] = [ended(run, data, options.test_images) for run in runs]
        faulthandler.cancel_dump_traceback_later()
        record(way, {"seconds": took, "seeds": found[way]})
        for key, unit in (("loss", ""), ("test_error", " %")):
            values = [one[key] for one in found[way]]
            print(f"{way:32s} {key:10s} {statistics.fmean(values):8.4f} +- {_std(values):.4f}{unit}   ({took:.1f} s in all)")
        sys.stdout.flush()
    for other in ("reference fp32", together):
        title = f"{ours} against {other}"
        record(title, comparison(found[ours], found[other], title))


def comparison(ours: list[dict[str, float]], theirs: list[dict[str, float]], title: str) -> dict[str, Any]:
    """Difference of the means, next to the spread over seeds (pooled standard deviation) and the largest for one seed."""
    result: dict[str, Any] = {}
    for key in ("loss", "test_error"):
        a, b = ([one[key] for one in ways] for ways in (ours, theirs))
        difference = statistics.fmean(a) - statistics.fmean(b)
        spread = ((_std(a) ** 2 + _std(b) ** 2) / 2) ** 0.5
        largest = max(abs(x - y) for x, y in zip(a, b, strict=True))
        result[key] = {
            "difference": difference,
            "spread": spread,
            "standard_error": spread * (2 / len(a)) ** 0.5,
            "largest_difference_of_a_seed": largest,
            "within_spread": abs(difference) <= spread,
        }
        verdict = "within" if abs(difference) <= spread else "OUTSIDE"
        print(f"{title}: {key} differs by {difference:+.4f}, {verdict} the spread {spread:.4f}; same seed at most {largest:.4f}")
    return result


def _std(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(rows: list[dict[str, Any]]) -> None:
    """Print the largest errors, one line each."""
    for row in rows:
        what = " ".join(str(value) for key, value in row.items() if key != "largest")
        print(f"{what:24s}" + "".join(f"  {kind} {error:.1e}" for kind, error in row["largest"].items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", nargs="+", default=["kernels", "models", "training"], choices=("kernels", "models", "training"))
    parser.add_argument("--json", type=Path, help="record every single error here; written after every part")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="numbers of solver steps to compare")
    parser.add_argument("--compare", type=int, default=64, help="images of a comparison with float64")
    parser.add_argument("--data", type=Path, help="folder of the image sets; by default LTNODE_DATA")
    parser.add_argument("--limit", type=int, default=4000, help="training images")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    on_cuda = torch.device(options.device).type == "cuda"
    machine = torch.cuda.get_device_name() if on_cuda else f"CPU, {torch.get_num_threads()} threads: a rehearsal only"
    result: dict[str, Any] = {"device": machine, "torch": torch.__version__, **source_state(), "ltnode": ltnode.__version__}
    print(f"{machine}, torch {torch.__version__}; relative errors against float64, the largest over {list(options.steps)} steps")

    def record(key: str, value: Any) -> None:
        result[key] = value
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    if "kernels" in options.part and not on_cuda:
        print("kernels: left out, they need CUDA (tests/accelerate/kernels emulates them on a CPU)")
    elif "kernels" in options.part:
        rows = trajectories(options.steps, options.compare, options.device)
        record("trajectory", rows)
        print("\nfused trajectory: precision, side")
        table(worst(rows, "precision", "side"))
    if "models" in options.part:
        rows = whole_models(options.steps, options.compare, options.device)
        record("models", rows)
        print("\nwhole models: model, shapes, precision")
        table(worst(rows, "model", "data", "precision"))
    if "training" in options.part and options.data is None and "LTNODE_DATA" not in os.environ:
        print("\ntraining: left out, it needs the image sets (--data FOLDER or LTNODE_DATA)")
    elif "training" in options.part:
        print(f"\n{options.epochs} epochs on {options.limit} CIFAR10 images, {options.seeds} seeds; mean +- standard deviation")
        trainings(options, record)


if __name__ == "__main__":
    main()
