"""The measured times of a server under attack: the page prints the record, and the record keeps the promises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from repository import repository_file


@pytest.fixture(scope="module")
def attacks() -> list[dict[str, Any]]:
    record = json.loads(repository_file("benchmarks/results/under_attack.json").read_text(encoding="utf-8"))
    return [row for row in record["attacks"] if "healthz_slowest_s" in row]


def test_the_page_prints_the_record(attacks: list[dict[str, Any]]) -> None:
    page = repository_file("docs/security.md").read_text(encoding="utf-8")
    for row in attacks:
        times = f"{row['healthz_slowest_s']:.3f} | {row['prediction_slowest_s']:.3f}"
        assert f"| {row['attack']} | {times} | {row['memory_peak_mib']} | {row['sigterm_s']:.2f} |" in page


def test_the_record_keeps_the_promises(attacks: list[dict[str, Any]]) -> None:
    """The limits of the page: /healthz within 1 s, a prediction within 3 s, the end within 10 s, and no failure."""
    assert {row["attack"].split()[0] for row in attacks} == {"1", "2", "3", "6", "7"}
    for row in attacks:
        assert row["healthz_slowest_s"] <= 1.0 and row["prediction_slowest_s"] <= 3.0 and row["sigterm_s"] <= 10.0
        assert row["failures"] == [] and row["status"] == 0 and row["healthz_requests"] >= 100
