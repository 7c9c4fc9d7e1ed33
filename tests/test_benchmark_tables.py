"""The tables of benchmarks/README.md are their records."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("rows", [own_fields, claims_of_own_fields, captured_prediction, evaluation, familiarity])
def test_every_row_of_a_record_is_in_the_table(rows: Any):
    """A record that changes without its table, or a table that rounds otherwise, is noticed."""
    missing = [row for row in rows() if row not in README]
    assert not missing, "\n".join(missing)
