"""The tables of predictions on a CPU and of uploads show what was recorded."""

from __future__ import annotations

import json
from typing import Any

from repository import repository_file


def recorded(name: str) -> tuple[Any, str]:
    """A record, and the page that shows it."""
    record = repository_file(f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
    return json.loads(record), repository_file("benchmarks/README.md").read_text(encoding="utf-8")


def test_the_table_of_uploads_is_the_recorded_one():
    record, page = recorded("serving")
    rows = record["uploads"]["loads"]
    assert [row["clients"] for row in rows] == [1, 64] and not any(row["failed"] for row in rows)
    for row in rows:
        assert f"| {row['clients']} | {row['requests_per_s']:.0f} | " in page
        assert f" | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} | {row['inputs_per_pass']:.1f} | " in page


def test_the_table_of_predictions_on_a_cpu_is_the_recorded_one():
    record, page = recorded("cpu_prediction")
    rows = record["rows"]
    assert [row["batch"] for row in rows] == [1, 64]
    for row in rows:
        assert f"| {row['batch']} | {row['median_ms']:.2f} | {row['fastest_ms']:.2f} | {row['processor_ms']:.2f} | " in page
