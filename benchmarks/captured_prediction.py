"""Prediction in CUDA graphs: 10,000 images, one image and 64, in every precision, with and without familiarity.

usage: python benchmarks/captured_prediction.py [--run zoo/lt-node-cifar10] [--data FOLDER] [--images 10000] [--repeats 7]
                                                [--profile WAY] [--json FILE]

Ways: "reference" (the layers as they are written), "layers" (in graphs), "kernels" (in graphs, with the fused trajectory; the
default). Images are CIFAR10 test images from FOLDER, or noise: untrained weights have a grid of 4 steps and no row fails on it,
while trained ones have their own grid and rows that are solved again; both numbers stand in every row. Without a run, weights
are untrained, and the familiarity is fitted on noise. Wanted on an H200 for 10,000 images in batches of 1,000: 0.09 s in
float32, 0.03 s in TF32 or bfloat16; one image at most 0.7 ms; batches of 1 and 1,000 agree to 1e-5 in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from familiarity import with_familiarity, without_familiarity
from prediction import network_inputs

import ltnode
from ltnode.accelerate.execution import FusedSolves
from ltnode.accelerate.predicting.captured import CapturedPredictions
from ltnode.device import autocast, product_precision
from ltnode.models.execution import REFERENCE, Execution, using
from ltnode.models.familiar_model import FamiliarModel
from ltnode.training.provenance import device_name, source_state

SAMPLES = 10
BATCHES = (1, 64, 1000)
WANTED = {("fp32", 1000): 90.0, ("tf32", 1000): 30.0, ("bf16", 1000): 30.0}
WANTED_ONE = 0.7
WANTED_DIFFERENCE = 1e-5


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time of a call until its result is on the host."""
    taken = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[3:])


def predict_all(model: ltnode.Model, x: torch.Tensor, batch: int) -> torch.Tensor:
    """Probabilities of all images on the host."""
    return torch.cat([model.predict(part, samples=SAMPLES).probs for part in x.split(batch)]).cpu()


@contextlib.contextmanager
def in_precision(precision: str, device: torch.device) -> Any:
    """Products of layers in this precision."""
    with product_precision(precision), autocast(precision, device):
        yield


def models(run: Path | None, x: torch.Tensor) -> dict[str, FamiliarModel]:
    """The same model with and without familiarity."""
    trained = ltnode.build("lt-node", "cifar10", seed=0) if run is None else ltnode.load(run)
    assert isinstance(trained, FamiliarModel)
    plain = without_familiarity(trained.to(x.device).eval())
    fitted = trained if trained.has_familiarity and trained.n_calibration else with_familiarity(plain, x)
    return {"with": fitted.to(x.device).eval(), "without": plain}


def profiled(execution: Execution, model: FamiliarModel, x: torch.Tensor) -> None:
    """Print which kernels take the time for one image and for 1,000."""
    for batch in (1, 1000):
        for precision in ("fp32", "tf32", "bf16"):
            with using(execution), in_precision(precision, x.device):
                for _ in range(3):
                    model.predict(x[:batch])
                torch.cuda.synchronize()
                activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
                with torch.profiler.profile(activities=activities) as found:
                    for _ in range(5):
                        predict_all(model, x[:batch], batch)
                    torch.cuda.synchronize()
            print(f"--- batch {batch}, {precision}, five predictions")
            print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=14, max_name_column_width=70))


def main() -> None:
    """Measure every way, precision and size of batch, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ways", nargs="+", default=["kernels", "layers", "reference"])
    parser.add_argument("--profile", metavar="WAY")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    x = network_inputs(options.images, options.data, device)
    executions = {
        "kernels": FusedSolves(CapturedPredictions(kernels=True)),
        "layers": FusedSolves(CapturedPredictions(kernels=False)),
        "reference": REFERENCE,
    }
    both = models(options.run, x)
    print(f"{device_name(device)}, torch {torch.__version__}, {options.run or 'untrained weights'}, {options.data or 'noise'}")
    if options.profile:
        profiled(executions[options.profile], both["with"], x)
        return
    rows: list[dict[str, Any]] = []
    for way in options.ways:
        for precision in ("fp32", "tf32", "bf16"):
            for batch in BATCHES:
                took: dict[str, float] = {}
                for name, model in both.items():
                    some = x if batch == max(BATCHES) else x[:batch]
                    with using(executions[way]), in_precision(precision, device):
                        repeats = options.repeats if batch == max(BATCHES) else 30 * options.repeats
                        took[name] = milliseconds(lambda m=model, s=some, b=batch: predict_all(m, s, b), repeats)
                        stats = model.predict(x[:batch]).stats
                assert stats is not None
                ratio = took["with"] / took["without"]
                row = {"way": way, "precision": precision, "batch": batch, "images": len(some), "ms": took, "ratio": ratio}
                rows.append(row | {"steps": stats.n_accepted, "evaluations": stats.n_evaluations, "halvings": stats.n_refreshed})
                wanted = WANTED_ONE if batch == 1 else WANTED.get((precision, batch))
                met = "" if wanted is None else f"  (wanted: {wanted:g}{'' if took['with'] <= wanted else ', MISSED'})"
                print(
                    f"{way:10s} {precision} batch {batch:5d} {took['with']:9.3f} ms for {len(some):6d} images, "
                    f"{took['without']:9.3f} without familiarity, ratio {ratio:.3f}, {stats}{met}",
                    flush=True,
                )
    with using(executions["kernels"]), in_precision("fp32", device):
        alone, together = predict_all(both["with"], x[:200], 1), predict_all(both["with"], x[:1000], 1000)[:200]
    with using(REFERENCE), in_precision("fp32", device):
        expected = predict_all(both["with"], x[:1000], 1000)[:200]
    differences = {"1 against 1,000": alone - together, "graphs against reference": together - expected}
    largest = {name: float(value.abs().max()) for name, value in differences.items()}
    for name, value in largest.items():
        print(f"probabilities, {name}: at most {value:.1e} apart (wanted: {WANTED_DIFFERENCE:g})")
    print(f"memory held by torch: {torch.cuda.memory_reserved() / 2**30:.2f} GiB")
    if options.json is not None:
        facts = {"machine": device_name(device), "torch": torch.__version__, "run": str(options.run or ""), **source_state()}
        options.json.write_text(json.dumps({**facts, "rows": rows, "differences": largest}, indent=1) + "\n")


if __name__ == "__main__":
    main()
