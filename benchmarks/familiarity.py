"""What distance and familiarity cost a prediction: the same model with and without them, in turns.

usage: python benchmarks/familiarity.py [--run zoo/lt-node-mnist] [--seconds 20] [--json FILE]

One copy of the model has no familiarity. That of the other is fitted on random images, because its cost does not depend on the
values. Both predict the same batch in turns, so that a busy machine slows both alike; on a CPU the time is that of the process.
The ratio is that of the medians over all turns; asked for is at most 1.1, for batches of 1 and 64 inputs, on a CPU and, if there
is one, on a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.device import product_precision
from ltnode.models.familiar_model import FamiliarModel
from ltnode.models.familiarity import Familiarity, Ranks
from ltnode.models.widening import Widening
from ltnode.trained import TrainedModel
from ltnode.training.provenance import device_name, source_state

BATCHES = (1, 64)
WANTED_RATIO = 1.1
FITTED_ON, CALIBRATED_ON = 512, 2500


def without_familiarity(trained: FamiliarModel) -> FamiliarModel:
    """A copy of the model whose predictions have neither distance nor familiarity, and are not widened."""
    model = copy.deepcopy(trained)
    model.familiarity, model.widening, model.ranks = Familiarity(), Widening(), Ranks()
    return model


def with_familiarity(plain: FamiliarModel, x: torch.Tensor) -> FamiliarModel:
    """A copy of the model whose predictions have distance and familiarity, and are widened."""
    model = copy.deepcopy(plain)
    labels = torch.arange(FITTED_ON, device=x.device) % 10
    model.fit_familiarity(x[:FITTED_ON], labels)
    model.fit_widening(x[:FITTED_ON], labels)
    model.ranks.fit(torch.randn(CALIBRATED_ON, device=x.device))
    return model


def seconds(model: ltnode.Model, x: torch.Tensor) -> float:
    """Time of one prediction: of the process on a CPU, until the device is done on a GPU."""
    clock = time.process_time if x.device.type == "cpu" else time.perf_counter
    start = clock()
    prediction = model.predict(x)
    if prediction.familiarity is not None:
        prediction.familiarity.cpu()
    prediction.probs.cpu()
    return clock() - start


def compared(plain: FamiliarModel, fitted: FamiliarModel, x: torch.Tensor, budget: float) -> dict[str, Any]:
    """Median times of both models, in turns."""
    taken: dict[str, list[float]] = {"without": [], "with": []}
    for model in (plain, fitted, plain, fitted):
        model.predict(x)
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        for name, model in (("without", plain), ("with", fitted)):
            taken[name].append(seconds(model, x))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "device": device_name(x.device),
        "batch": len(x),
        **{f"ms_{name}": round(1000 * value, 3) for name, value in medians.items()},
        "ratio": round(medians["with"] / medians["without"], 3),
        "turns": len(taken["with"]),
    }


def main() -> None:
    """Measure every device and size of batch, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="zoo/lt-node-mnist")
    parser.add_argument("--seconds", type=float, default=20.0, help="for every device and size of batch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        trained = TrainedModel.open(options.run, device)
        assert isinstance(trained.model, FamiliarModel)
        raw = torch.randint(256, (FITTED_ON, *trained.shape), dtype=torch.uint8)
        x = trained.prepare(raw)
        with product_precision("fp32"):
            plain, fitted = without_familiarity(trained.model), with_familiarity(trained.model, x)
            assert plain.predict(x[:1]).distance is None and fitted.predict(x[:1]).familiarity is not None
            for batch in BATCHES:
                row = compared(plain, fitted, x[:batch], options.seconds)
                rows.append(row)
                met = "" if row["ratio"] <= WANTED_RATIO else f"  MISSED: at most {WANTED_RATIO} is asked for"
                print(
                    f"{row['device']}, batch {batch}: {row['ms_without']:.2f} ms without, {row['ms_with']:.2f} ms with, "
                    f"ratio {row['ratio']:.3f}{met}",
                    flush=True,
                )
    if options.json is not None:
        record = {"run": options.run, "rows": rows, "python": platform.python_version(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**record, **source_state()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
