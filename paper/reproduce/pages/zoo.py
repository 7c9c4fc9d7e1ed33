"""The cards of the zoo: one page per trained model, made of its configuration and its results, and a table of them all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.errors import DataError
from ltnode.report.naming import Variant, data_title
from ltnode.report.table import markdown_table
from paper.reproduce.claims.numbers import ImageNumbers
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult
from paper.reproduce.images.run_folders import run_config
from paper.reproduce.images.zoo import Entry
from paper.reproduce.published import PaperValues, Printed


def write_cards(zoo: Path, entries: Sequence[Entry], published: PaperValues, note: str = "") -> list[Path]:
    """Write the card of every model and the table of them all, with a note under it."""
    made = []
    for entry in entries:
        path = entry.folder / "README.md"
        path.write_text(card(entry, published), encoding="utf-8")
        made.append(path)
    (zoo / "README.md").write_text(overview(entries, published, note), encoding="utf-8")
    return [*made, zoo / "README.md"]


def overview(entries: Sequence[Entry], published: PaperValues, note: str = "") -> str:
    """The zoo's own page, with a note at its end."""
    header = ("folder", "preset", "error, paper", "error", "log-likelihood", "ECE", "learnt q(T)")
    rows = []
    for entry in entries:
        printed = _printed(entry.cell, published)
        numbers = _numbers(entry.result)
        rows.append(
            [
                f"[`{entry.folder.name}`]({entry.folder.name}/README.md)",
                entry.cell.preset,
                "–" if printed is None else f"{printed.mean:.3f} ± {printed.std:.3f}",
                *(_text(numbers.get(name), digits) for name, digits in (("error", 4), ("log_likelihood", 3), ("ece", 3))),
                _posterior(entry),
            ]
        )
    return f"""# Trained models

Each folder is a run: `ltnode.load("zoo/lt-node-cifar10")` gives the model, `config.json` says how it was trained, `metrics.jsonl`
how the training went, `results.json` carries the provenance, `README.md` is its card. The weights are outside of the wheel. This
page and the cards are made by `ltnode reproduce images` from `paper/results`.

{markdown_table(header, rows)}
One seed (0) each, the last epoch of the paper's full schedule, all test images. One seed gives no ranking; the paper's errors are
means over 5.
{note}"""


def card(entry: Entry, published: PaperValues) -> str:
    """The model card: data, training, learnt posterior, calibration clean and shifted, operating point, limits."""
    cell, config = entry.cell, run_config(entry.folder)
    record = _json(entry.folder / "results.json")["provenance"]
    title = Variant(cell.model, cell.preset, "").title
    data = record["data"]
    printed = _printed(cell, published)
    command = cell.command()
    trained = (
        f"{config.epochs} epochs of {config.optimizer.upper()}, learning rate {config.lr:g} (times {config.decay:g} at epochs "
        f"{', '.join(str(m) for m in config.milestones)}), weight decay {config.weight_decay:g}, batches of {config.batch_size}, "
        f"precision {config.precision}, seed {config.seed}; {record['wall_time_s']:.0f} s on one {record['device']}, "
        f"torch {record['torch']}, source commit {(record['git_commit'] or 'not recorded')[:12]}."
    )
    return f"""# {title} on {data_title(cell.data)}

```python
import ltnode

model = ltnode.load("zoo/{entry.folder.name}")  # then model.predict(data.prepare(images)), or `ltnode predict`
```

**Data.** {data_title(cell.data)}, {data["n_train"]:,} training and {data["n_test"]:,} test images of shape
{" x ".join(str(n) for n in data["input_shape"])}, official files (checksums in `config.json`).

**Training.** {trained}
Repeat it: `{command}`.

**End-time.** {_posterior(entry)}.{_kl(entry.result)}

{_measurements(entry, printed)}
{_operating_point(entry.folder)}
**Limits.** One seed: differences to other models of the size of the spread over seeds mean nothing. Uncertainty comes from the
end-time alone, weights are point estimates{_no_uncertainty(cell.model)}. The model has seen nothing but {data_title(cell.data)}:
it gives a class to every image, and on shifted or foreign images its confidence is only as good as the numbers above.
{_tail(entry)}"""


def _printed(cell: Cell, published: PaperValues) -> Printed | None:
    """The paper's error, which is that of its own posterior."""
    return published.error(cell.data, cell.model) if cell.preset == "paper" else None


def _measurements(entry: Entry, printed: Printed | None) -> str:
    if entry.result is None:
        return f"**Quality.** Not evaluated yet: `{entry.cell.command()}`.\n"
    numbers, recorded = _numbers(entry.result), ImageNumbers([entry.result])
    rows = [["clean", *(_text(numbers.get(name), 4) for name in ("error", "log_likelihood", "brier", "ece", "mean_entropy"))]]
    for angle in (15, 45, 90):
        read = [recorded.number("rotation", m, angle=angle)(entry.result) for m in _SHIFT]
        if read[0] is not None:
            rows.append([f"rotated by {angle}°", *(_text(value, 4) for value in read)])
    text = "**Quality and calibration**, clean and shifted (log-likelihood and entropy in nats"
    text += f"; the paper's error, 5 seeds: {printed.mean:.3f} ± {printed.std:.3f})" if printed else ")"
    table = markdown_table(("test images", "error", "log-likelihood", "Brier", "ECE", "mean entropy"), rows)
    missing = [
        name for name in ("rotation", "ood", "fgsm") if not any(k.partition(":")[0] == name for k in entry.result.protocols)
    ]
    note = f"Not evaluated yet: {', '.join(missing)}.\n" if missing else ""
    return f"{text}:\n\n{table}\n{_foreign(entry.result)}{note}"


def _foreign(result: ImageResult) -> str:
    key = next((key for key in result.protocols if key.startswith("ood")), None)
    if key is None:
        return ""
    other, recorded = key.partition(":")[2], ImageNumbers([result])
    auroc, fpr = (recorded.number("ood", m, ood=other, score="max_probability")(result) for m in ("auroc", "fpr95"))
    entropy = recorded.number("ood", "mean_entropy", ood=other, part="out")(result)
    passing = _text(None if fpr is None else 100 * fpr, 1)
    return (
        f"Against {data_title(other)}, by the largest probability: AUROC {_text(auroc, 4)}; at the threshold that keeps 95 % of "
        f"{data_title(result.data)}, {passing} % of {data_title(other)} pass; mean entropy there {_text(entropy, 3)}.\n"
    )


def _operating_point(folder: Path) -> str:
    path = folder / "operating_point.json"
    if not path.exists():
        return f"**Operating point.** None chosen yet: `ltnode operating-point zoo/{folder.name}`.\n"
    point = _json(path)
    score = _SCORES.get(point["ood_score"], point["ood_score"])
    return (
        f"**Operating point** (`operating_point.json`). It abstains above an entropy of {point['entropy_threshold']:.4g} nats, "
        f"which answers {100 * point['coverage']:g} % and raises the accuracy from {point['accuracy']:.4f} to "
        f"{point['accuracy_kept']:.4f}; it calls an input foreign where the {score} is below "
        f"{point['ood_threshold']:.4g}. Chosen on {point['data']}.\n"
    )


def _posterior(entry: Entry) -> str:
    recorded = None if entry.result is None else entry.result.content["learnt"]
    learnt: Mapping[str, float] = recorded or _json(entry.folder / "results.json")["last"]["learnt"]
    match entry.cell.model:
        case "node":
            return f"T = {learnt['mean']:g}"
        case "uni-node":
            return "T ~ U(0, 3)"
        case "lt-node":
            on = " on (0, 3)" if entry.cell.preset == "default" else f", P(T > 3) = {learnt['tail']:.2f}"
            return f"Gamma({learnt['alpha']:.2f}, {learnt['beta']:.2f}){on}"
        case _:
            return f"q(T | x): mean {learnt['mean']:.2f}, P(T > 3) = {learnt['tail']:.2f} over test images"


def _kl(result: ImageResult | None) -> str:
    weight = None if result is None else result.content["kl_weight"]
    if weight is None:
        return ""
    return f" KL weight {weight['per_point']:g} per image, {weight['weighting']} weights, in effect {weight['effective']:g}."


def _tail(entry: Entry) -> str:
    learnt = (entry.result.content["learnt"] if entry.result else None) or {}
    tail = learnt.get("tail", 0.0)
    return f"{100 * tail:.0f} % of its end-times lie beyond the training window, where it extrapolates.\n" if tail > 0.01 else ""


def _no_uncertainty(model: str) -> str:
    return "; with its one end-time this model has none of that kind" if model == "node" else ""


_SCORES = {"max_probability": "largest probability", "mutual_information": "mutual information"}
_SHIFT = ("error", "log_likelihood", "brier", "ece", "mean_entropy")


def _numbers(result: ImageResult | None) -> Mapping[str, float]:
    if result is None:
        return {}
    return {
        row.metric: row.number
        for row in result.rows()
        if row.protocol == "clean" and isinstance(row.value, float) and not row.setting
    }


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); restore it from the repository") from error
    return content
