"""Result files preserve the rows of `ltnode.evaluate`, and damaged files are reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltnode.errors import DataError
from ltnode.evaluation import Cost, ResultRow
from paper.reproduce.images.results import ImageResult, compact_rows, cost_of, read_result, read_results, write_result

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: float(f"{value:.7g}"))


def row(metric: str, value: Any, protocol: str = "rotation", **more: Any) -> ResultRow:
    return ResultRow("lt-node", "cifar10", "paper", 0, protocol, metric, value, more.pop("n", 10), draw_seed=0, **more)


def content(parts: dict[str, list[ResultRow]], **changes: Any) -> dict[str, Any]:
    protocols = {
        key: {"options": {}, "draw_seed": 0, "provenance": {}, "cost": cost_of(rows), "rows": compact_rows(rows)}
        for key, rows in parts.items()
    }
    head = {"data": "cifar10", "model": "lt-node", "preset": "paper", "variant": None, "seed": 0}
    return {"format": 1, "experiment": "images", **head, "protocols": protocols, **changes}


@settings(max_examples=12)
@given(st.lists(NUMBERS, min_size=13, max_size=13), st.lists(NUMBERS, min_size=3, max_size=30), NUMBERS)
def test_rows_are_preserved(
    tmp_path_factory: pytest.TempPathFactory, angles: list[float], curve: list[float], one: float
) -> None:
    """Arrays over angles, curves over even and uneven abscissae, and spreads over draws are equal, because 7 digits are kept."""
    x = [0.01 * k for k in range(len(curve))]
    uneven = {"x": [0.0, 0.1, 0.5], "x_name": "threshold"}
    rows = [row("error", value, setting={"angle": 15 * k}) for k, value in enumerate(angles)]
    rows += [row("brier", value, setting={"angle": 15 * k}) for k, value in enumerate(angles)]
    rows += [row("confidence_accuracy", tuple(curve), setting={"angle": 45}, extra={"x": x, "x_name": "threshold"})]
    rows += [row("count", (1.0, 2.0, 3.0), extra=uneven), row("plain", one, n=20)]
    rows += [row("error", one, setting={"statistic": "std over draws"}, extra={"values": angles, "mean": one, "seeds": [0, 1]})]
    path = tmp_path_factory.mktemp("results") / "images-x.json"
    write_result(path, content({"rotation": rows}))
    found = read_result(path).rows()
    key = lambda r: (r.metric, json.dumps(dict(r.setting), sort_keys=True))  # noqa: E731
    for ours, theirs in zip(sorted(found, key=key), sorted(rows, key=key), strict=True):
        assert ours.extra.get("x", []) == pytest.approx(theirs.extra.get("x", []), abs=1e-7)
        rest = [{**r.to_json(), "extra": {k: v for k, v in r.extra.items() if k != "x"}} for r in (ours, theirs)]
        assert rest[0] == rest[1]


def test_a_missing_point_stays_nan(tmp_path: Path) -> None:
    """The accuracy of no predictions is NaN, which is written as null and read as NaN."""
    curve = row("confidence_accuracy", (0.5, math.nan), extra={"x": [0.0, 1.0], "x_name": "threshold"})
    write_result(tmp_path / "images-x.json", content({"rotation": [curve]}))
    assert "NaN" not in (tmp_path / "images-x.json").read_text()
    assert math.isnan(read_result(tmp_path / "images-x.json").rows()[0].curve[1])


def test_the_file_is_readable_and_stable(tmp_path: Path) -> None:
    """One row per line and arrays on one line; writing the file again gives the same bytes."""
    rows = [row("error", k / 13, setting={"angle": 15 * k}) for k in range(13)]
    write_result(tmp_path / "images-x.json", content({"rotation": rows}))
    text = (tmp_path / "images-x.json").read_text()
    lines = [line for line in text.splitlines() if '"metric": "error"' in line]
    assert len(lines) == 1
    assert '"along": "angle"' in lines[0]
    write_result(tmp_path / "images-x.json", json.loads(text))
    assert (tmp_path / "images-x.json").read_text() == text


def test_cost_is_the_mean_of_a_protocol() -> None:
    rows = [row("a", 1.0, cost=Cost(20.0, 1.0, 5)), row("b", 1.0, cost=Cost(40.0, 2.0, 7)), row("c", 1.0)]
    assert cost_of(rows) == {"evaluations": 30.0, "seconds_per_1000": 1.5, "peak_memory_bytes": 7}
    assert cost_of([row("c", 1.0)]) is None


def test_variants_are_distinguished_and_trials_do_not_count(tmp_path: Path) -> None:
    """Reports distinguish variants by ``extra["variant"]``."""
    made = content({"clean": [row("error", 0.1, "clean")]}, variant="softmax")
    assert ImageResult(made).rows()[0].extra == {"variant": "softmax"}
    write_result(tmp_path / "images-a.json", made)
    write_result(tmp_path / "images-b.json", {**made, "trial": ["epochs=1"]})
    assert len(read_results(tmp_path)) == 1


@pytest.mark.parametrize("text", ["{", "{}", '{"format": 2, "experiment": "images"}', '{"format": 1, "experiment": "images"}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "images-x.json").write_text(text)
    with pytest.raises(DataError, match=r"images-x.json is damaged"):
        read_results(tmp_path)
