"""From a CSV file with categories, dates, missing cells and a wrong column to report, served form and verified ONNX file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from sales_table import sales, write_sales
from typer.testing import CliRunner, Result

from ltnode.cli.app import make_app
from ltnode.export.table_encoding import column_values
from ltnode.serve import create_app
from ltnode.trained import TrainedModel

SHORT = ("--set", "epochs=8", "--device", "cpu")


def ltnode_command(*words: object) -> Result:
    """Run a command, which must succeed."""
    result = CliRunner().invoke(make_app(), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, in which a word in a column of numbers was ignored, and a run on it that predicts the price."""
    place = tmp_path_factory.mktemp("own")
    damaged = sales(240)["id"].astype(object)
    damaged[7] = "eight"
    data = write_sales(place / "sales.csv", {"reference": damaged * 1, "dear": None}, n=240)
    refused = CliRunner().invoke(make_app(), ["train", "--data", str(data), "--target", "price", "--out", str(place / "run")])
    assert refused.exit_code == 2
    assert "'reference' must hold numbers, but row 8 has 'eight'" in refused.stderr
    words = ("--target", "price", "--group", "agent", "--ignore", "reference", "--out", place / "run", *SHORT)
    said = ltnode_command("train", "--data", data, *words).stdout
    for word in ("size", "number", "city", "category", "new", "boolean", "sold", "date", "comment", "not used", "on request"):
        assert word in said
    assert "Target price: regression (inferred" in said
    assert "rows with the same agent stay on one side" in said
    return place


def test_the_schema_is_saved_with_the_run(folder: Path) -> None:
    """config.json has the columns, the target, the group and what was left out, and the parts that were drawn."""
    record = json.loads((folder / "run" / "config.json").read_text())["data"]
    schema = record["schema"]
    assert [(column["name"], column["kind"]) for column in schema["columns"]] == [
        ("size", "number"), ("city", "category"), ("new", "boolean"), ("sold", "date"),
    ]  # fmt: skip
    assert schema["targets"][0]["name"] == "price"
    assert schema["group"] == "agent"
    assert {entry["name"] for entry in schema["ignored"]} == {"agent", "reference", "id", "comment"}
    assert record["n_train"] + record["n_validation"] + record["n_calibration"] + record["n_test"] == 240
    assert record["origin"]["seed"] == 0
    assert record["validation_indices"].startswith("md5:")


def test_evaluation_and_report_use_the_test_rows_in_the_units_of_the_table(folder: Path) -> None:
    """The RMSE is that of the predicted prices: below the standard deviation of all prices, far above 1."""
    ltnode_command("evaluate", folder / "run")
    rows = json.loads((folder / "run" / "evaluation.json").read_text())
    record = json.loads((folder / "run" / "config.json").read_text())["data"]
    found = [row for part in rows["protocols"].values() for row in part["rows"] if row["metric"] == "rmse"]
    assert found[0]["n"] == record["n_test"]
    assert 5000 < found[0]["value"] < float(sales(240)["price"].std())
    ltnode_command("report", folder / "run", "--out", folder / "report")
    page = (folder / "report" / "index.html").read_text()
    assert "sales.csv" in page


def test_predictions_of_new_rows_are_written_beside_their_flags(folder: Path) -> None:
    """Every row has a mean in the units of the price, an interval around it, and notes on what is unusual."""
    new = sales(12, seed=9).drop(columns=["price", "dear"])
    new.loc[0, "city"] = "Lugano"
    new.to_csv(folder / "new.csv", index=False)
    ltnode_command("predict", folder / "run", folder / "new.csv", "--out", folder / "predictions.csv")
    predicted = pd.read_csv(folder / "predictions.csv")
    assert len(predicted) == 12
    assert (predicted["mean"].abs() > 1000).all()
    assert ((predicted["low90"] < predicted["mean"]) & (predicted["mean"] < predicted["high90"])).all()
    assert "Lugano" in predicted["notes"][0]


def test_the_server_has_a_form_and_the_effect_of_a_column(folder: Path) -> None:
    """The answer about a row is that of the command line; the curve passes through it at the value of the row."""
    trained = TrainedModel.open(folder / "run")
    row = {"size": 80.0, "city": "Bern", "new": True, "sold": "2023-05-01"}
    with TestClient(create_app([trained]), base_url="http://127.0.0.1") as client:
        model = client.get("/api/models").json()["models"][0]
        assert (model["kind"], model["target"]) == ("table", "price")
        assert [column["name"] for column in model["columns"]] == list(row)
        answer = client.post("/api/predict", json={"rows": [row]}).json()["predictions"][0]
        assert answer["familiarity"] is not None
        effect = client.post("/api/effect", json={"row": row, "column": "new"}).json()
        # Answers are float32: six digits agree.
        assert effect["mean"][1] == pytest.approx(answer["mean"], rel=1e-5)
        assert effect["low"][1] == pytest.approx(answer["interval"][0], rel=1e-4)
        curve = client.post("/api/effect", json={"row": row, "column": "size", "points": 9}).json()
        assert len(curve["values"]) == len(curve["mean"]) == len(curve["familiarity"]) == 9
        dates = client.post("/api/effect", json={"row": row, "column": "sold", "points": 3}).json()
        assert dates["values"] == sorted(dates["values"])
        refused = client.post("/api/predict", json={"rows": [{"size": 80.0}]})
        assert refused.status_code == 422
        assert "'city' is missing" in refused.json()["error"]["reason"]
        unknown = client.post("/api/predict", json={"rows": [{**row, "city": "Lugano"}]}).json()
        assert "Lugano" in unknown["notes"][0]
        strange = client.post("/api/effect", json={"row": row, "column": "sizes"})
        assert "'size'" in strange.json()["error"]["reason"]


@pytest.mark.slow
def test_the_onnx_file_encodes_rows_itself(folder: Path) -> None:
    """onnxruntime alone predicts what the library predicts for cells of all kinds, missing and unknown ones included."""
    onnxruntime = pytest.importorskip("onnxruntime")
    said = ltnode_command("export", folder / "run", "--out", folder / "model.onnx", "--samples", 3).stdout
    assert "Verified and kept" in said
    trained = TrainedModel.open(folder / "run")
    assert trained.schema is not None
    rows = sales(20, seed=4)
    rows.loc[3, "city"] = "Lugano"
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    columns = json.loads(session.get_modelmeta().custom_metadata_map["ltnode.columns"])
    assert [column["name"] for column in columns] == ["size", "city", "new", "sold"]
    # The numbers of the columns as a user of the file computes them, from its metadata and pandas alone.
    city = {name: place for place, name in enumerate(columns[1]["categories"])}
    days = (pd.to_datetime(rows["sold"]) - pd.Timestamp("1970-01-01")).dt.days
    places = [np.nan if not isinstance(name, str) else city.get(name, len(city)) for name in rows["city"]]
    values = np.stack([rows["size"], places, rows["new"] == "yes", days], axis=1).astype(np.float64)
    np.testing.assert_array_equal(values, column_values(trained.schema, rows))
    (mean,) = session.run(["mean"], {"x": values})
    expected = [row.mean for row in trained.rows(trained.schema.encode(rows).x, samples=3)]
    # Float32 in another order of operations, relative to prices of some hundred thousand.
    np.testing.assert_allclose(mean, expected, rtol=1e-4)


def test_calibrate_and_other_tables(folder: Path) -> None:
    """New rows renew the ranks; another table with the target is evaluated with all of its rows."""
    write_sales(folder / "later.csv", n=60, seed=3)
    ltnode_command("evaluate", folder / "run", "--data", folder / "later.csv", "--out", folder / "later.json")
    rows = json.loads((folder / "later.json").read_text())
    assert {row["n"] for part in rows["protocols"].values() for row in part["rows"]} == {60}
    assert "60 inputs of later.csv" in ltnode_command("calibrate", folder / "run", "--data", folder / "later.csv").stdout


@pytest.mark.parametrize("suffix", ["parquet", "npz", "tsv"])
def test_other_formats_give_the_same_data_as_csv(tmp_path: Path, suffix: str) -> None:
    """A classification by commands on each format; the schema does not depend on the format, and distillation works on it."""
    frame = sales(120)[["size", "new", "dear"]].fillna({"size": 1.0})
    file = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(file)
    elif suffix == "tsv":
        frame.to_csv(file, sep="\t", index=False)
    else:
        np.savez(file, **{name: frame[name].to_numpy(dtype=None if name == "size" else str) for name in frame})
    ltnode_command("train", "--data", file, "--target", "dear", "--out", tmp_path / "run", "--set", "epochs=2")
    schema = TrainedModel.open(tmp_path / "run").schema
    assert schema is not None
    assert [column.kind for column in schema.columns] == ["number", "boolean"]
    assert schema.target.classes == ("cheap", "dear")
    if suffix == "tsv":
        ltnode_command("distill", tmp_path / "run", "--out", tmp_path / "student", "--set", "epochs=2")
        assert TrainedModel.open(tmp_path / "student").schema == schema
