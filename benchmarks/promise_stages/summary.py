"""Stage `summary`: the record of all units, tables of means over seeds, and tests of LT-NODE against NODE."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promise_stages.evaluating import ANGLES, BLURS, SHIFTED
from promise_stages.settings import RECORD, SETS, Place, read_units

Unit = dict[str, Any]
_COLUMNS: dict[str, Callable[[Unit], float | None]] = {
    "error": lambda u: u["clean"]["shown"]["error"],
    "LL raw": lambda u: u["clean"]["raw"]["log_likelihood"],
    "LL tempered": lambda u: u["clean"]["tempered"]["log_likelihood"],
    "LL": lambda u: u["clean"]["shown"]["log_likelihood"],
    "ECE raw": lambda u: u["clean"]["raw"]["ece"],
    "ECE": lambda u: u["clean"]["shown"]["ece"],
    "ECE if calibrated": lambda u: u["clean"]["shown"]["ece_if_calibrated"],
    "rotated LL raw": lambda u: u["rotated"]["raw"]["log_likelihood"],
    "rotated LL": lambda u: u["rotated"]["shown"]["log_likelihood"],
    "blurred LL raw": lambda u: u["blurred"]["raw"]["log_likelihood"],
    "blurred LL": lambda u: u["blurred"]["shown"]["log_likelihood"],
    "AUROC": lambda u: _score(u["foreign"], "auroc"),
    "FPR95": lambda u: _score(u["foreign"], "fpr95"),
    "AUROC entropy": lambda u: u["foreign"]["raw entropy"]["auroc"],
    "test flagged": lambda u: u["flagged_test"],
}
_TESTED: dict[str, Callable[[Unit, str], float]] = {
    "ECE": lambda u, view: u["clean"][view]["ece"],
    "rotated LL": lambda u, view: u["rotated"][view]["log_likelihood"],
    "error": lambda u, view: u["clean"][view]["error"],
    "LL": lambda u, view: u["clean"][view]["log_likelihood"],
}
_SIGNIFICANT = 0.05


def summary(place: Place, record: Path = RECORD) -> dict[str, Any]:
    """Collect all units into one record, write it, and print its tables."""
    rows, costs, searched = (list(read_units(place.work, stage)) for stage in ("evaluate", "cost", "search"))
    table = aggregate(rows)
    configs: dict[str, Any] = {}
    for unit in (*rows, *searched):
        key = f"{unit['data']}/{unit['model']}" + (" search" if "clean" not in unit else "")
        if (config := unit["provenance"].pop("config", None)) is not None:
            varied = ("seed",) if "clean" in unit else ("seed", "weight_decay")
            configs[key] = {name: value for name, value in config.items() if name not in varied}
    content = {
        "protocol": {
            "rotated": f"mean over {', '.join(map(str, ANGLES))} degrees, the first {SHIFTED:,} test images",
            "blurred": f"mean over severities {', '.join(map(str, BLURS))}, the first {SHIFTED:,} test images",
            "raw": "before temperature and widening",
            "tempered": "after one temperature, fitted on the select part",
            "shown": "what predict returns: temperature and widening",
            "flagged": "familiarity <= 0.05",
        },
        "table": table,
        "tests": compare(rows, "lt-node", "node"),
        "configs": configs,
        "cost": costs,
        "search": searched,
        "rows": rows,
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(_one_row_per_line(_rounded(content)))
    print_search(searched)
    _print_table(table)
    _print_made_up(rows)
    _print_tests(content["tests"])
    return content


def aggregate(rows: Iterable[Unit]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of every column, per data set and model."""
    groups = _grouped(rows)
    table = []
    for (data, model), units in groups.items():
        entry: dict[str, Any] = {"data": data, "model": model, "seeds": len(units)}
        for name, read in _COLUMNS.items():
            entry[name] = _spread([value for unit in units if (value := read(unit)) is not None])
        table.append(entry)
    return table


def compare(rows: Iterable[Unit], first: str, second: str) -> list[dict[str, Any]]:
    """Welch's tests between two models, corrected by Holm's method over all of them; none where scipy is not installed."""
    if find_spec("scipy") is None:
        print("\nno tests: scipy is not installed")
        return []
    from scipy.stats import ttest_ind

    groups, tests = _grouped(rows), []
    for data in SETS:
        ours, theirs = groups.get((data, first), []), groups.get((data, second), [])
        if len(ours) < 2 or len(theirs) < 2:
            continue
        for view in ("raw", "tempered"):
            for name, read in _TESTED.items():
                a, b = [read(unit, view) for unit in ours], [read(unit, view) for unit in theirs]
                p = float(ttest_ind(a, b, equal_var=False).pvalue)
                means = {first: statistics.fmean(a), second: statistics.fmean(b)}
                tests.append({"data": data, "view": view, "metric": name, **means, "p": p if math.isfinite(p) else 1.0})
    for test, corrected in zip(tests, holm([test["p"] for test in tests]), strict=True):
        better = test[first] > test[second] if "LL" in test["metric"] else test[first] < test[second]
        test["p_holm"] = corrected
        test["verdict"] = "no difference" if corrected > _SIGNIFICANT else "better" if better else "worse"
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected by Holm's method, in the order of the arguments."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def print_search(units: Sequence[Unit]) -> None:
    """Print the scores of the search, with the best weight decay of every model marked."""
    if not units:
        return
    print("\nsearch, select part\nset      model     decay    error   LL       LL tempered  ECE     T")
    best = {}
    for unit in units:
        key = unit["data"], unit["model"]
        if key not in best or unit["log_likelihood_tempered"] > best[key]["log_likelihood_tempered"]:
            best[key] = unit
    for unit in sorted(units, key=lambda u: (u["data"], u["model"], u["weight_decay"])):
        mark = " *" if best[unit["data"], unit["model"]] is unit else ""
        print(
            f"{unit['data']:8} {unit['model']:9} {unit['weight_decay']:<8g} {unit['error']:.4f}  {unit['log_likelihood']:.4f}  "
            f"{unit['log_likelihood_tempered']:.4f}      {unit['ece']:.4f}  {unit['temperature']:.3f}{mark}"
        )


def _grouped(rows: Iterable[Unit]) -> dict[tuple[str, str], list[Unit]]:
    groups: dict[tuple[str, str], list[Unit]] = defaultdict(list)
    for unit in rows:
        groups[unit["data"], unit["model"]].append(unit)
    return dict(sorted(groups.items(), key=lambda item: (SETS.index(item[0][0]), item[0][1])))


def _score(found: dict[str, Any], metric: str) -> float | None:
    return found["distance"][metric] if "distance" in found else None


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def _rounded(value: Any) -> Any:
    """Round numbers, so that the record stays small."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _one_row_per_line(content: dict[str, Any]) -> str:
    """JSON in which every entry of a list or table has a line of its own."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list):
            inner = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
        else:
            inner = "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items()) + "\n }"
        parts.append(f" {json.dumps(key)}: {inner}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _print_table(table: Sequence[dict[str, Any]]) -> None:
    print("\n" + " ".join(f"{name:>17}" for name in ("set", "model", "seeds", *_COLUMNS)))
    for entry in table:
        cells = [entry["data"], entry["model"], str(entry["seeds"])]
        for name in _COLUMNS:
            value = entry[name]
            cells.append("" if value is None else f"{value['mean']:.4f}+-{value['std']:.4f}")
        print(" ".join(f"{cell:>17}" for cell in cells))


def _print_made_up(rows: Iterable[Unit]) -> None:
    print("\nmade-up images: AUROC of the distance (AUROC of the raw entropy), share flagged")
    for (data, model), units in _grouped(rows).items():
        cells = []
        for kind in units[0]["made_up"]:
            found = [unit["made_up"][kind] for unit in units]
            auroc = [value for entry in found if (value := _score(entry, "auroc")) is not None]
            flagged = [entry["flagged"] for entry in found if entry["flagged"] is not None]
            entropy = statistics.fmean(entry["raw entropy"]["auroc"] for entry in found)
            shown = f"{statistics.fmean(auroc):.3f}" if auroc else "-"
            cells.append(f"{kind} {shown} ({entropy:.2f}) {statistics.fmean(flagged):.3f}" if flagged else f"{kind} {shown}")
        print(f"{data:14} {model:12} " + "; ".join(cells))


def _print_tests(tests: Sequence[dict[str, Any]]) -> None:
    print("\nLT-NODE against NODE, Welch's test, Holm-corrected")
    for test in tests:
        print(
            f"{test['data']:14} {test['view']:9} {test['metric']:11} {test['lt-node']:.4f} against {test['node']:.4f}, "
            f"p = {test['p']:.4f}, corrected {test['p_holm']:.4f}: {test['verdict']}"
        )
