"""The tables of benchmarks/README.md are their records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from repository import ROOT

README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table_rows(values: list[list[Any]]) -> list[str]:
    return ["| " + " | ".join("" if value is None else str(value) for value in row) + " |" for row in values]


def own_fields() -> list[str]:
    keys = ("field", "way", "optimizer", "precision")
    return table_rows(
        [
            [*(row[key] for key in keys), f"{row['ms']:.3f}", row["steps"], row["evaluations"]]
            for row in record("own_fields")["rows"]
        ]
    )


def claims_of_own_fields() -> list[str]:
    return table_rows(
        [
            [
                claim["field"],
                claim["what"],
                f"{claim['value']:.3g}",
                claim["wanted"],
                {True: "met", False: "missed", None: ""}[claim["met"]],
            ]
            for claim in record("own_fields")["claims"]
        ]
    )


def captured_prediction() -> list[str]:
    return table_rows(
        [
            [
                row["run"] or "untrained",
                row["way"],
                row["precision"],
                row["batch"],
                f"{row['ms']['with']:.2f}",
                f"{row['ms']['without']:.2f}",
                f"{row['ratio']:.2f}",
                row["evaluations"],
            ]
            for row in record("captured_prediction")["rows"]
        ]
    )


def evaluation() -> list[str]:
    found = record("evaluation")
    return [f"| {row['seconds']:.1f} | {row['rows']} |" for row in found["rows"]] + [f"| all | {found['seconds']:.1f} |"]


def familiarity() -> list[str]:
    found = record("familiarity")
    costs = [
        [row["device"], row["run"], row["batch"], f"{row['ms_without']:.2f}", f"{row['ms_with']:.2f}", f"{row['ratio']:.3f}"]
        for row in found["rows"]
    ]
    shares = [
        [row["device"], row["data"], row["epochs"], f"{row['s_epoch']:.2f}", f"{row['s_fitting']:.2f}", f"{row['share']:.4f}"]
        for row in found["trainings"]
    ]
    return table_rows(costs) + table_rows(shares)


def promises() -> list[str]:
    """What the issue on familiarity asked for, as means over five seeds: LT-NODE, and the distilled network of CIFAR10."""
    rows = record("promises")["rows"]

    def mean(data: str, value: Callable[[dict[str, Any]], float], model: str = "lt-node") -> float:
        found = [value(row) for row in rows if row["data"] == data and row["model"] == model]
        assert len(found) == 5
        return statistics.fmean(found)

    def clean(name: str) -> Callable[[dict[str, Any]], float]:
        return lambda row: float(row["clean"]["shown"][name])

    def foreign(row: dict[str, Any]) -> float:
        return float(row["foreign"]["distance"]["auroc"])

    def made_up(kind: str, of: str) -> Callable[[dict[str, Any]], float]:
        return lambda row: float(
            row["made_up"][kind]["flagged"] if of == "flagged" else row["made_up"][kind]["distance"]["auroc"]
        )

    every = ("mnist", "fashion-mnist", "cifar10", "svhn")
    goals: list[tuple[str, str, float, str, float]] = [
        ("CIFAR10", "error", mean("cifar10", clean("error")), "at most", 0.113),
        ("CIFAR10", "log-likelihood", mean("cifar10", clean("log_likelihood")), "at least", -0.335),
        ("CIFAR10", "ECE", mean("cifar10", clean("ece")), "at most", 0.012),
        ("CIFAR10", "AUROC against SVHN", mean("cifar10", foreign), "at least", 0.95),
        ("CIFAR10, distilled", "error", mean("cifar10", clean("error"), "distilled"), "at most", 0.108),
        ("CIFAR10, distilled", "log-likelihood", mean("cifar10", clean("log_likelihood"), "distilled"), "at least", -0.322),
        ("SVHN", "error", mean("svhn", clean("error")), "at most", 0.039),
        ("SVHN", "AUROC against CIFAR10", mean("svhn", foreign), "at least", 0.97),
        ("MNIST", "AUROC against Fashion-MNIST", mean("mnist", foreign), "at least", 0.98),
        ("Fashion-MNIST", "AUROC against MNIST", mean("fashion-mnist", foreign), "at least", 0.97),
    ]
    for kind in ("uniform noise", "Gaussian noise"):
        goals.append(
            ("every set", f"{kind}, smallest AUROC", min(mean(d, made_up(kind, "auroc")) for d in every), "at least", 0.98)
        )
        goals.append(
            (
                "every set",
                f"{kind}, smallest share flagged",
                min(mean(d, made_up(kind, "flagged")) for d in every),
                "at least",
                0.95,
            )
        )
    for kind in ("constant", "gradient"):
        goals.append(
            ("every set", f"{kind}, smallest share flagged", min(mean(d, made_up(kind, "flagged")) for d in every), "at least", 1)
        )
    for kind in ("shuffled patches", "inverted"):
        goals.append(("CIFAR10", f"{kind}, AUROC", mean("cifar10", made_up(kind, "auroc")), "at least", 0.8))
    for name, data in (("CIFAR10", "cifar10"), ("SVHN", "svhn"), ("MNIST", "mnist"), ("Fashion-MNIST", "fashion-mnist")):
        flagged = mean(data, lambda row: float(row["flagged_test"]))
        goals.append((name, "test images flagged", flagged, "at most", 0.06))
        goals.append((name, "test images flagged", flagged, "at least", 0.04))
    return table_rows(
        [
            [
                name,
                what,
                f"{value:.4f}",
                f"{side} {wanted}",
                "met" if (value <= wanted if side == "at most" else value >= wanted) else "missed",
            ]
            for name, what, value, side, wanted in goals
        ]
    )


@pytest.mark.parametrize("rows", [promises, own_fields, claims_of_own_fields, captured_prediction, evaluation, familiarity])
def test_every_row_of_a_record_is_in_the_table(rows: Any):
    """A record that changes without its table, or a table that rounds otherwise, is noticed."""
    missing = [row for row in rows() if row not in README]
    assert not missing, "\n".join(missing)
