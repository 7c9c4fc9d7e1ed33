"""Schemas of tables: kinds, encoding against pandas and scikit-learn, parts without leaks, JSON from strangers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sales_table import sales, write_sales
from sklearn.preprocessing import OneHotEncoder

import ltnode
from ltnode.data import Shares, from_table
from ltnode.data.origin import Origin
from ltnode.errors import InputError
from ltnode.export.table_encoding import TableEncoding, check_encoding, column_values, drawn_rows
from ltnode.models.units import ToUnits
from ltnode.tables import Schema, read_table


def encoded(frame: pd.DataFrame, target: str = "y") -> tuple[Schema, pd.DataFrame]:
    """The schema of a table, and its features by name."""
    schema = Schema.infer(frame, target)
    return schema, pd.DataFrame(schema.encode(frame).x, columns=list(schema.feature_names))


@given(st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d"])), min_size=30, max_size=60))
@settings(max_examples=25, deadline=None)
def test_categories_are_encoded_as_scikit_learn_does(words: list[str | None]) -> None:
    """One feature per category that occurs twice; the reference is OneHotEncoder, in which rare ones share a column too."""
    words = [*words, "a", "a", "b", "b"]
    frame = pd.DataFrame({"x": words, "z": np.arange(len(words)) * 0.5, "y": np.arange(len(words)) % 7 + 0.5})
    _, features = encoded(frame)
    present = [word is not None for word in words]
    encoder = OneHotEncoder(min_frequency=2, sparse_output=False).fit(frame.loc[present, ["x"]])
    names = [name.replace("infrequent_sklearn", "(other)").replace("x_", "x = ") for name in encoder.get_feature_names_out()]
    expected = pd.DataFrame(encoder.transform(frame.loc[present, ["x"]]), columns=names)
    got = features.loc[present, names].reset_index(drop=True)
    pd.testing.assert_frame_equal(got, expected)
    assert (features.loc[[not there for there in present], names] == 0).all(axis=None)
    assert ("x is missing" in features) == (not all(present))


def test_numbers_and_dates_agree_with_pandas() -> None:
    """Medians replace missing numbers; days count from the first date; the circles of week and year are those of pandas."""
    frame = sales()
    schema, features = encoded(frame, "price")
    np.testing.assert_allclose(features["size"], frame["size"].fillna(frame["size"].median()))
    np.testing.assert_array_equal(features["size is missing"], frame["size"].isna())
    moments = pd.to_datetime(frame["sold"])
    np.testing.assert_array_equal(features["sold: days"], (moments - moments.min()).dt.days)
    for name, period in (("weekday", 7), ("season", 365.2425)):
        angle = 2 * np.pi * (moments - pd.Timestamp("1970-01-01")).dt.days / period
        # Angles of thousands of radians: the sine is exact to about 1e-12.
        np.testing.assert_allclose(features[f"sold: {name} (sin)"], np.sin(angle), atol=1e-9)
    assert [column.kind for column in schema.columns] == ["number", "category", "boolean", "date", "category", "category"]
    assert [name for name, _ in schema.ignored] == ["id", "comment"]


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%Y/%m/%d", "%Y-%m-%dT%H:%M:%S"])
def test_dates_are_read_in_several_formats(form: str) -> None:
    """The format is found from the cells, and encoding equals that of dates in ISO 8601."""
    moments = pd.date_range("2023-01-01", periods=60, freq="31h").floor("D" if "H" not in form else "h")
    base = pd.DataFrame({"y": np.arange(60) * 0.7})
    expected = encoded(base.assign(when=moments))[1]
    pd.testing.assert_frame_equal(encoded(base.assign(when=moments.strftime(form)))[1], expected)


def test_rows_of_a_group_stay_on_one_side_and_constants_come_from_the_fitting_rows() -> None:
    """No group is in two parts; medians and the scale of the target are those of the rows that are trained on."""
    frame = sales(400)
    data = from_table(frame, "price", group="agent", ignore=["dear"], shares=Shares(seed=3))
    assert data.schema is not None and data.parts is not None
    # Targets identify rows, as prices hardly repeat.
    agents = dict(zip(frame["price"].astype(np.float32), frame["agent"], strict=True))
    sides = [data.train.select(part).y for part in (data.parts.fit, data.parts.validation, data.parts.calibration)]
    groups = [{agents[value] for value in side.numpy()} for side in (*sides, data.test.y)]
    for one in range(4):
        for other in range(one):
            assert not groups[one] & groups[other]
    assert data.schema.target.mean == pytest.approx(float(sides[0].double().mean()), rel=1e-6)
    fitting = frame[frame["price"].astype(np.float32).isin(sides[0].numpy())]
    assert data.schema.columns[0].fill == pytest.approx(fitting["size"].median())


@pytest.mark.no_typecheck
def test_a_schema_survives_json_and_refuses_what_is_none() -> None:
    """What is read is what was written; missing keys, wrong types and impossible numbers get an InputError."""
    schema = Schema.infer(sales(), "dear")
    content = json.loads(json.dumps(schema.to_json()))
    assert Schema.from_json(content) == schema
    hostile: list[Any] = [None, [], {}, {**content, "format": 2}, {**content, "columns": []}, {**content, "columns": [{}]}]
    for key, value in (
        ("kind", "text"),
        ("fill", float("nan")),
        ("fill", True),
        ("categories", "abc"),
        ("name", 3),
        ("parts", ["x"]),
    ):
        hostile.append({**content, "columns": [{**content["columns"][0], key: value}, *content["columns"][1:]]})
    hostile.append({**content, "targets": [{**content["targets"][0], "classes": ["one"]}]})
    for one in hostile:
        with pytest.raises(InputError):
            Schema.from_json(one)
    with pytest.raises(InputError):
        Origin.from_json({**Origin("table", "t.csv").to_json(), "seed": "0"})


@pytest.mark.parametrize("seed", range(3))
def test_the_encoding_of_an_exported_file_is_that_of_the_library(seed: int) -> None:
    """For drawn cells of all kinds; a wrong category list, as a file of another table would have, is noticed."""
    schema = Schema.infer(sales(seed=seed), "price")
    rows = drawn_rows(schema, 50, seed)
    check_encoding(TableEncoding(schema), schema, rows)
    values = column_values(schema, rows)
    assert values.shape == (50, len(schema.columns))
    other = Schema.infer(
        sales(seed=seed).assign(city="Bern", new=["yes", "no"] * 100, size=3.0), "price", kinds={"city": "category"}
    )
    with pytest.raises((InputError, RuntimeError)):
        check_encoding(TableEncoding(other), schema, rows)


def test_targets_in_units_have_the_gradients_of_standardised_targets() -> None:
    """The loss differs by log std, and all gradients of the network agree: the reference is the same network without units."""
    data = from_table(sales(), "price", ignore=["dear"])
    scale = data.target_scale
    assert scale is not None
    mean, std = scale
    spec = ltnode.InputSpec(data.input_shape, "regression")
    plain, scaled = ltnode.build("node", spec, seed=0).double(), ltnode.build("node", data, seed=0).double()
    assert isinstance(scaled.head[1], ToUnits)
    x, y = data.prepare(data.train.x).double(), data.train.y.double()
    losses = [plain.loss(x, (y - mean) / std), scaled.loss(x, y)]
    # Float64, and the same operations up to the units.
    assert float(losses[1] - losses[0]) == pytest.approx(np.log(std), abs=1e-6)
    for loss in losses:
        loss.backward()
    gradients = [torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (plain, scaled)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-9)


def test_rows_without_a_target_are_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training uses the others."""
    price = sales()["price"]
    price[:15] = np.nan
    with caplog.at_level(logging.WARNING, logger="ltnode"):
        data = from_table(write_sales(tmp_path / "t.csv", {"price": price}), "price")
    assert len(data.train) + len(data.test) == 185
    assert "15 of 200 rows have no price" in caplog.text


@pytest.mark.parametrize(
    "text", ["size;price\n1,5;2\n2,5;3\n", "size\tprice\n1.5\t2\n2.5\t3\n", "\ufeffsize|price\n1.5|2\n2.5|3\n"]
)
def test_delimiters_and_decimal_commas_are_found(tmp_path: Path, text: str) -> None:
    """Spreadsheets of many countries write semicolons and decimal commas."""
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    table = read_table(tmp_path / "t.csv")
    np.testing.assert_array_equal(table["size"], [1.5, 2.5])
    np.testing.assert_array_equal(table["price"], [2, 3])
