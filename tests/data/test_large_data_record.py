"""Large tables and folders by commands: how they are generated and measured, and the record that the page shows."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from repository import load_script, repository_file


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(repository_file("benchmarks/own_process.py").parent))
    return {name: load_script(f"benchmarks/{name}.py") for name in ("own_process", "photo_folder", "large_tables")}


def test_the_cost_of_a_command_is_measured(scripts):
    """A command that imports the package takes CPU time and more than 30 MiB; it shows no bar, and failures are said."""
    cost = scripts["own_process"].cost_of_command("--version")
    assert cost["cpu_seconds"] > 0 and cost["seconds"] > 0 and cost["peak_mib"] > 30 and not cost["progress_bar"]
    with pytest.raises(SystemExit, match="ltnode no-such-command ended with status 2"):
        scripts["own_process"].cost_of_command("no-such-command")


def test_copies_of_photos_keep_class_and_part(scripts, monkeypatch, tmp_path):
    monkeypatch.setattr(scripts["photo_folder"], "DIFFERENT", 20)
    scripts["photo_folder"].write_photos(tmp_path, 60, 16)
    places: dict[bytes, set[Path]] = {}
    for file in tmp_path.rglob("*.jpg"):
        places.setdefault(file.read_bytes(), set()).add(file.parent)
    assert len(places) == 20 and all(len(folders) == 1 for folders in places.values())
    assert len(list((tmp_path / "test").rglob("*.jpg"))) == 12


def test_tables_have_all_kinds_of_columns(scripts):
    """Numbers with missing cells, categories, dates, booleans, and a target with noise of a third of the spread of the rest."""
    pandas = pytest.importorskip("pandas")
    frame = scripts["large_tables"].table(3000, 50)
    assert frame.shape == (3000, 50)
    assert {name.split("_")[0] for name in frame.columns} == {"number", "category", "date", "boolean", "target"}
    assert 0.04 < frame.filter(like="number").isna().to_numpy().mean() < 0.06
    assert pandas.to_datetime(frame["date_1"]).notna().all() and set(frame["boolean_2"]) == {"yes", "no"}


def page(name: str) -> str:
    return repository_file(f"docs/{name}.md").read_text(encoding="utf-8")


def line(what: str, command: str, cost: dict[str, Any]) -> str:
    return f"| {what} | {command} | {cost['cpu_seconds']:.0f} | {cost['peak_mib']:,} |"


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(repository_file(f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    return content


def test_the_page_shows_the_record_of_tables():
    tables = recorded("large_tables")["tables"]
    assert [(table["rows"], table["columns"]) for table in tables] == [(10_000, 50), (100_000, 50)]
    for table in tables:
        for command in ("train", "predict a file", "predict in blocks"):
            assert line(f"{table['rows']:,} rows x {table['columns']} columns", command, table[command]) in page("own-tables")
            assert table[command]["progress_bar"]


def test_memory_for_rows_is_bounded():
    """Ten times the rows need at most three times the memory in training, and at most twice in blocks of 50,000 rows."""
    small, large = recorded("large_tables")["tables"]
    assert large["train"]["peak_mib"] <= 3 * small["train"]["peak_mib"]
    assert large["predict in blocks"]["peak_mib"] <= 2 * small["predict in blocks"]["peak_mib"]


def test_the_page_shows_the_record_of_photos():
    """The images never are in memory as a whole: no process has as much as their pixels in bytes alone."""
    record = recorded("photo_folder")
    assert (record["images"], record["size"]) == (20_000, 224)
    for command in ("train one epoch", "predict the test images", "predict all images in blocks"):
        assert line("20,000 photos of 224 pixels", command, record[command]) in page("own-images")
        assert record[command]["peak_mib"] < record["pixels_mib"] and record[command]["progress_bar"]
    assert np.isclose(record["pixels_mib"], 20_000 * 3 * 224**2 / 2**20, atol=1)
