"""The table of docs/export.md is made from a record."""

from __future__ import annotations

import json

from repository import ROOT, load_script, repository_file


def test_the_page_has_the_table_of_the_record():
    """No number is written by hand, all are of the weights in the zoo, and every kind of one network is among them."""
    record = json.loads(repository_file("benchmarks/results/export.json").read_text())
    page = repository_file("docs/export.md").read_text()
    assert load_script("benchmarks/export.py").markdown(record["rows"]) in page
    for row in record["rows"]:
        point = json.loads((ROOT / "zoo" / row["model"] / "operating_point.json").read_text())
        assert row["weights_sha256"] == point["weights"], row["model"]
    exported = {row["model"] for row in record["rows"]}
    for network in ("node", "uni-node", "lt-node", "alt-node"):
        assert any(name.startswith(f"{network}-") for name in exported)
    zoo = {path.parent.name for path in (ROOT / "zoo").glob("*/model.safetensors")}
    missing = f"{len(zoo - exported)} of the {len(zoo)} models"
    assert missing in page  # the page says how many were not exported with their current weights
    assert all(row["difference"] <= 1.1e-5 for row in record["rows"])


def test_a_row_reads_as_it_was_measured():
    """Sizes in megabytes, shares in percent, differences with two digits."""
    row = {"model": "m", "format": "torch", "grid": "stored", "bytes": 2_849_000, "difference": 0.0, "flagged": 0.02}
    last = load_script("benchmarks/export.py").markdown([{**row, "from_predict": 0.1914}]).splitlines()[-1]
    assert last == "| `m` | torch, stored steps | 2.85 MB | 0.0e+00 | 2 % | 1.9e-01 |"
