"""The page on clusters prints what benchmarks/cluster.py has recorded, and no row was lost or doubled in the record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from repository import repository_file


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(repository_file("benchmarks/results/cluster.json").read_text(encoding="utf-8"))
    return recorded


def test_the_page_prints_the_record(record: dict[str, Any]) -> None:
    page = repository_file("docs/cluster.md").read_text(encoding="utf-8")
    for row in record["predictions"]:
        ratios = " | ".join(f"{row[name]:.3f}" for name in ("ratio_after_the_first_block", "ratio_of_wall", "ratio_of_cpu"))
        assert f"{row['inputs']:,} {row['what']} | {row['engine']} | {row['inputs_per_second']:,} | {ratios} |" in page
    for row in record["sweeps"]:
        assert f"{row['milliseconds_per_trial']:.1f} ms" in page


def test_the_record_holds_every_row_once_in_flat_memory(record: dict[str, Any]) -> None:
    """Flat: the second half of the inputs needs at most a tenth more than the first, which is the noise of the allocator."""
    assert {(row["what"], row["engine"]) for row in record["predictions"]} == {
        (what, engine) for what in ("rows", "images") for engine in ("local", "ray")
    }
    for row in record["predictions"]:
        assert row["written"] == row["inputs"] and row["ratio_after_the_first_block"] >= 0.9
        assert row["measured"]["peak_mib_second_half"] <= 1.1 * row["measured"]["peak_mib_first_half"]
    assert all(row["different_rows"] == row["rows"] == row["inputs"] for row in record["killed_and_repeated"])
