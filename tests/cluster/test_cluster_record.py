"""The page on clusters prints what benchmarks/cluster.py has recorded, and no row was lost or doubled in the record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from repository import repository_file

MEASURED = {(what, engine) for what in ("rows", "images") for engine in ("local", "ray")}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(repository_file("benchmarks/results/cluster.json").read_text(encoding="utf-8"))
    return recorded


def test_the_page_prints_the_record(record: dict[str, Any]) -> None:
    page = repository_file("docs/cluster.md").read_text(encoding="utf-8")
    for row in record["predictions"]:
        ratios = f"{row['ratio_of_cpu']:.3f} | {row['ratio_of_cpu_between_files']:.3f}"
        memory = " / ".join(str(row["measured"][f"peak_mib_{half}_half"]) for half in ("first", "second"))
        assert (
            f"| {row['inputs']:,} {row['what']} | {row['engine']} | {row['inputs_per_second']:,} | {ratios} | {memory} |" in page
        )
    for row in record["sweeps"]:
        assert f"{row['milliseconds_per_trial']:.1f} ms" in page


def test_the_command_costs_little_more_than_a_loop_written_by_hand(record: dict[str, Any]) -> None:
    """At least 0.9 inputs a processor second for each of the loop, with all starts where the command itself is the worker."""
    for row in record["predictions"]:
        if row["engine"] == "local":
            assert row["ratio_of_cpu"] >= 0.9
        assert row["written"] == row["written_by_the_loop"] == row["inputs"]


def test_the_record_holds_every_row_once_in_flat_memory(record: dict[str, Any]) -> None:
    """Flat: the second half of the inputs needs at most a tenth more than the first, which is the noise of the allocator."""
    assert {(row["what"], row["engine"]) for row in record["predictions"]} == MEASURED
    for row in record["predictions"]:
        assert row["measured"]["peak_mib_second_half"] <= 1.1 * row["measured"]["peak_mib_first_half"]
    assert {(row["what"], row["engine"]) for row in record["killed_and_repeated"]} == MEASURED
    for row in record["killed_and_repeated"]:
        assert row["killed_with_status"] == -9
        assert 0 < row["rows_kept"] < row["inputs"]
        assert row["kept_files_untouched"]
        assert row["different_rows"] == row["rows"] == row["inputs"]
