"""What distance and familiarity cost a prediction: the same model with and without them, in turns.

usage: python benchmarks/familiarity.py [--runs zoo/lt-node-mnist zoo/lt-node-cifar10] [--seconds 20]
                                        [--trainings mnist cifar10] [--json FILE]

One copy of the model has no familiarity. That of the other is fitted on random images, because its cost does not depend on the
values. Both predict the same batch in turns, so that a busy machine slows both alike; on a CPU the time is that of the process.
The ratio is that of the medians over all turns; asked for is at most 1.1, for batches of 1 and 64 inputs, on a CPU and, if there
is one, on a GPU.

With --trainings, also what share of a training the fitting takes, of which at most 0.1 is asked for: three epochs of LT-NODE's
preset on random images in the shape and number of a set, of which the last is timed, and the fitting on them. The share is that
of a whole training with the preset's number of epochs.
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
from ltnode.models import input_spec
from ltnode.models.familiar_model import FamiliarModel
from ltnode.models.familiarity import Familiarity, Ranks
from ltnode.models.widening import Widening
from ltnode.trained import TrainedModel
from ltnode.training.batches import TrainingData, as_dataset
from ltnode.training.finishing import Examples, fit_uncertainty, fitting_examples
from ltnode.training.provenance import device_name, source_state

BATCHES = (1, 64)
WANTED_RATIO = 1.1
FITTED_ON, CALIBRATED_ON = 512, 2500
EPOCHS = 3
EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "svhn": 73_257}
ON_A_CPU = 1_024
"""Number of examples of the timed epochs on a CPU; the time of a whole epoch follows by their ratio."""


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
    assert model.predict(x).probs.numel()
    wait(x.device)
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


def training_share(data: str, device: torch.device) -> dict[str, Any]:
    """What share of a training of LT-NODE the fitting of familiarity, widening and ranks takes."""
    config = ltnode.train_preset("lt-node", data).replace(device=str(device), epochs=EPOCHS, milestones=(), precision="bf16")
    if device.type == "cpu":
        config = config.replace(precision="fp32")
    whole = ltnode.train_preset("lt-node", data)
    spec = input_spec(data)
    size = EXAMPLES[data] if device.type == "cuda" else ON_A_CPU
    x, y = torch.randn(size, *spec.shape), torch.randint(10, (size,))
    model = ltnode.build("lt-node", data, seed=0)
    ends: list[float] = []

    def ended(_: dict[str, Any]) -> None:
        wait(device)
        ends.append(time.perf_counter())

    ltnode.fit(model, (x, y), config, on_epoch=ended)
    dataset = as_dataset((x, y), model)
    parts = TrainingData.of(dataset, model, config, device)
    wait(device)
    start = time.perf_counter()
    examples = fitting_examples(parts)
    held = [Examples(*parts.evaluation_inputs(part)) for part in (parts.validation, parts.calibration) if part is not None]
    fit_uncertainty(model, examples, *held)
    wait(device)
    fitting = time.perf_counter() - start
    epoch = (ends[-1] - ends[-2]) * EXAMPLES[data] / size
    share = fitting / (whole.epochs * epoch + fitting)
    row = {"data": data, "device": device_name(device), "examples": size, "epochs": whole.epochs, "s_epoch": round(epoch, 3)}
    return {**row, "s_fitting": round(fitting, 3), "fitted_on": len(examples.y), "share": round(share, 5)}


def wait(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure every device and size of batch, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=["zoo/lt-node-mnist", "zoo/lt-node-cifar10"])
    parser.add_argument("--seconds", type=float, default=20.0, help="for every device and size of batch")
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    parser.add_argument("--trainings", nargs="*", default=[], help="data sets in whose shapes trainings are timed")
    parser.add_argument("--json", type=Path, help="record; rows of other devices that it has stay")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    devices = [torch.device(name) for name in options.devices]
    rows = [row for device in devices for run in options.runs for row in costs(run, device, options.seconds)]
    shares = [training_share(data, device) for device in devices for data in options.trainings]
    for row in shares:
        print(f"{row['device']}, {row['data']}: fitting takes {row['s_fitting']:.2f} s, {row['share']:.4f} of a training")
    if options.json is not None:
        about = {"python": platform.python_version(), "torch": torch.__version__, **source_state()}
        found = {"rows": [{**row, **about} for row in rows], "trainings": [{**row, **about} for row in shares]}
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        measured = {device_name(device) for device in devices}
        for name, new in found.items():
            kept = [row for row in before.get(name, []) if row["device"] not in measured or not new]
            found[name] = kept + new
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def costs(run: str, device: torch.device, budget: float) -> list[dict[str, Any]]:
    """Compare predictions of a stored run with and without familiarity, for every size of batch."""
    trained = TrainedModel.open(run, str(device))
    assert isinstance(trained.model, FamiliarModel)
    x = trained.prepare(torch.randint(256, (FITTED_ON, *trained.shape), dtype=torch.uint8))
    rows = []
    with product_precision("fp32"):
        plain, fitted = without_familiarity(trained.model), with_familiarity(trained.model, x)
        assert plain.predict(x[:1]).distance is None and fitted.predict(x[:1]).familiarity is not None
        for batch in BATCHES:
            row = {"run": run, **compared(plain, fitted, x[:batch], budget)}
            rows.append(row)
            met = "" if row["ratio"] <= WANTED_RATIO else f"  MISSED: at most {WANTED_RATIO} is asked for"
            print(
                f"{row['device']}, {run}, batch {batch}: {row['ms_without']:.2f} ms without, {row['ms_with']:.2f} ms with, "
                f"ratio {row['ratio']:.3f}{met}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    main()
