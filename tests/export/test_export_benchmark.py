"""The table of docs/export.md is made from a record."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export_benchmark", REPOSITORY / "benchmarks" / "export.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_the_record():
    """Every model of the zoo is in it, and no number is written by hand."""
    record = json.loads((REPOSITORY / "benchmarks" / "results" / "export.json").read_text())
    assert loaded().markdown(record["rows"]) in (REPOSITORY / "docs" / "export.md").read_text()
    exported = {row["model"] for row in record["rows"]}
    assert exported == {path.parent.name for path in (REPOSITORY / "zoo").glob("*/model.safetensors")}
    assert all(row["difference"] <= 1.1e-5 for row in record["rows"])  # the page says which one exceeds 1e-5


def test_a_row_reads_as_it_was_measured():
    """Sizes in megabytes, shares in percent, differences with two digits."""
    row = {"model": "m", "format": "torch", "grid": "stored", "bytes": 2_849_000, "difference": 0.0, "flagged": 0.02}
    last = loaded().markdown([{**row, "from_predict": 0.1914}]).splitlines()[-1]
    assert last == "| `m` | torch, stored steps | 2.85 MB | 0.0e+00 | 2 % | 1.9e-01 |"
