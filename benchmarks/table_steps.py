"""One optimiser step of the estimators against one of scikit-learn's MLP, and the time to an equal held-out log loss.

usage: python benchmarks/table_steps.py [--rounds 9] [--json FILE]
       python benchmarks/table_steps.py --render        # only write the tables of the record into benchmarks/README.md

Steps: both train with the default of the estimators' batch size, an eighth of the rows between 16 and 256, and with their default
networks. A step of the estimators trains five networks at once; that of one network (``members=1``) is measured beside it.
"Reference" is the step of one network of `ltnode.models.step` in float64, which computes the same losses with autograd. The
methods take turns within every round, and the times are processor times of the first 20 epochs (3 of the reference) without
held-out rows; the ratios are medians over the rounds.

Log loss, of five networks: processor seconds until the held-out log loss (30 % of 2,000 rows) is for the first time within 0.01
of the worse one of the two methods' best values, epoch by epoch.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_friedman1
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

import ltnode
from ltnode.data import Split
from ltnode.estimators.budget import automatic_batch
from ltnode.estimators.epochs import TableTraining
from ltnode.estimators.threads import using_threads
from ltnode.models import Ensemble
from ltnode.report.table import markdown_table
from ltnode.training.provenance import device_name, source_state

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "table_steps.json"
PAGE = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- begin: benchmarks/table_steps.py -->", "<!-- end: benchmarks/table_steps.py -->"
ROWS = (160, 512, 1024, 2048)
TASKS = ("labels", "targets")
EPOCHS, SLOW_EPOCHS = 20, 3
MARGIN = 0.01
MEMBERS = 5
"""Networks of the estimators."""
LONGEST = 60
"""Most epochs until the best log loss."""

Array = NDArray[Any]


def table(task: str, rows: int) -> tuple[Array, Array]:
    """A generated table with 20 standardised columns."""
    if task == "labels":
        x, y = make_classification(rows, 20, n_informative=10, flip_y=0.05, random_state=0)
    else:
        x, y = make_friedman1(rows, 20, noise=1.0, random_state=0)
        y = (y - y.mean()) / y.std()
    return StandardScaler().fit_transform(x), y


def training(task: str, x: Array, y: Array, accelerate: str = "auto", members: int = MEMBERS) -> TableTraining:
    """A training of the estimators' default networks."""
    spec = ltnode.InputSpec((x.shape[1],), *(("classification", 2) if task == "labels" else ("regression",)))
    options = {"of": "lt-node", "members": members} if members > 1 else {}
    model = ltnode.build("ensemble" if members > 1 else "lt-node", spec, seed=0, **options).double()
    assert isinstance(model, ltnode.LatentTimeODE | Ensemble)
    config = ltnode.TrainConfig(batch_size=automatic_batch(len(x)), lr=0.003, device="cpu", accelerate=accelerate)
    return TableTraining(model, Split(torch.tensor(x), torch.tensor(y)), config)


def mlp(task: str, rows: int, epochs: int, **options: Any) -> MLPClassifier | MLPRegressor:
    kind = MLPClassifier if task == "labels" else MLPRegressor
    return kind(batch_size=automatic_batch(rows), max_iter=epochs, n_iter_no_change=10 * epochs, random_state=0, **options)


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def steps_of(task: str, rows: int, rounds: int) -> dict[str, Any]:
    """Microseconds per step of five networks, of one, of its reference and of the MLP, and how often that of the MLP fits in."""
    x, y = table(task, rows)
    found: dict[str, list[float]] = {"five": [], "ours": [], "reference": [], "mlp": []}
    evaluations = 0
    for _ in range(rounds):
        five, ours, reference = (training(task, x, y, *kind) for kind in (("auto",), ("auto", 1), ("off", 1)))
        times = {
            "five": seconds(lambda five=five: [five.run_epoch() for _ in range(EPOCHS)]) / EPOCHS,
            "ours": seconds(lambda ours=ours: [ours.run_epoch() for _ in range(EPOCHS)]) / EPOCHS,
            "reference": seconds(lambda reference=reference: [reference.run_epoch() for _ in range(SLOW_EPOCHS)]) / SLOW_EPOCHS,
            "mlp": seconds(lambda: mlp(task, rows, EPOCHS).fit(x, y)) / EPOCHS,
        }
        for name, value in times.items():
            found[name].append(1e6 * value / -(-rows // automatic_batch(rows)))
        evaluations = 6 * (len(ours.model.training_grid.edges or ()) - 1) + 1
    ratios = {name: [a / b for a, b in zip(found[name], found["mlp"], strict=True)] for name in ("five", "ours", "reference")}
    medians = {f"{name}_us": statistics.median(values) for name, values in found.items()}
    return {
        "task": task,
        "rows": rows,
        "batch": automatic_batch(rows),
        "evaluations": evaluations,
        **medians,
        "ratio": statistics.median(ratios["ours"]),
        "ratios": ratios["ours"],
        "five_ratio": statistics.median(ratios["five"]),
        "reference_ratio": statistics.median(ratios["reference"]),
    }


def curve(fit_epoch: Callable[[], object], probabilities: Callable[[], Array], y: Array) -> list[tuple[float, float]]:
    """Processor seconds of the training so far and held-out log loss, after every epoch."""
    points, spent = [], 0.0
    for _ in range(LONGEST):
        spent += seconds(fit_epoch)
        points.append((spent, float(log_loss(y, probabilities()))))
    return points


def to_equal_loss(seed: int) -> dict[str, float]:
    """Processor seconds of both methods to an equal held-out log loss on one split."""
    x, y = table("labels", 2000)
    x, held, y, y_held = train_test_split(x, y, test_size=0.3, random_state=seed)
    ours = training("labels", x, y)
    theirs = mlp("labels", len(x), 1)
    inputs = torch.tensor(held)
    curves = {
        "ours": curve(ours.run_epoch, lambda: np.asarray(ours.model.predict(inputs).probs), y_held),
        "mlp": curve(lambda: theirs.partial_fit(x, y, classes=np.unique(y)), lambda: theirs.predict_proba(held), y_held),
    }
    goal = max(min(loss for _, loss in points) for points in curves.values()) + MARGIN
    reached = {f"{name}_s": next(s for s, loss in points if loss <= goal) for name, points in curves.items()}
    best = {f"{name}_best": min(loss for _, loss in points) for name, points in curves.items()}
    return {"seed": seed, "goal": goal, **best, **reached}


def render(record: dict[str, Any], page: str) -> str:
    """The page with the tables of the record between its markers."""
    steps = []
    for r in record["steps"]:
        times = [f"{r['mlp_us']:.0f}"]
        for name, ratio in (("ours", "ratio"), ("five", "five_ratio"), ("reference", "reference_ratio")):
            times += [f"{r[f'{name}_us']:.0f}", f"**{r[ratio]:.1f}**" if name != "reference" else f"{r[ratio]:.1f}"]
        steps.append([r["task"], f"{r['rows']:,}", str(r["batch"]), str(r["evaluations"]), *times])
    losses = []
    for r in record["losses"]:
        best = f"{r['ours_best']:.3f}", f"{r['mlp_best']:.3f}"
        losses.append([str(r["seed"]), f"{r['goal']:.3f}", f"{r['ours_s']:.2f}", f"{r['mlp_s']:.2f}", *best])
    ours = ("one network, µs", "its ratio", "five networks, µs", "their ratio", "reference, µs", "its ratio")
    head = ["table", "rows", "batch", "evaluations", "MLP, µs", *ours]
    second = ["split", "log loss to reach", "ours, CPU s", "MLP, CPU s", "best of ours", "best of the MLP"]
    tables = f"{markdown_table(head, steps)}\n{markdown_table(second, losses)}"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables}{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds in which the methods take turns")
    parser.add_argument("--json", type=Path, default=RECORD, help="where the record goes")
    parser.add_argument("--render", action="store_true", help="run nothing; write the tables of the record into the page")
    options = parser.parse_args()
    if not options.render:
        warnings.filterwarnings("ignore", module="sklearn")  # convergence notes of the MLP
        with using_threads(1):
            steps = [steps_of(task, rows, options.rounds) for task in TASKS for rows in ROWS]
            losses = [to_equal_loss(seed) for seed in range(3)]
        record = {
            "provenance": {
                "ltnode": ltnode.__version__,
                **source_state(),
                "scikit_learn": sklearn.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "device": device_name(torch.device("cpu")),
                "rounds": options.rounds,
            },
            "steps": steps,
            "losses": losses,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.json == RECORD:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        PAGE.write_text(render(record, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
