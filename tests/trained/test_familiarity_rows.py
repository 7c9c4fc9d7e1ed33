"""Familiarity as users see it: rows, flags, the record of the calibration, its renewal, and explanations."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path

import pytest
import torch
from familiar_models import CALIBRATION, DIM, familiar_run, rows
from typer.testing import CliRunner, Result

from ltnode.cli.app import make_app
from ltnode.errors import CheckpointError, InputError
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained import CalibrationRecord, Explanation, OperatingPoint, TrainedModel, explain, new_examples, renew_calibration
from ltnode.trained.calibration_record import FILE

APP = make_app()
FAR = torch.tensor([[0.0, 30.0, 0.0, 0.0]])


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words], prog_name="ltnode")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return familiar_run(tmp_path / "run")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A typical row, and one whose second column is 30 standard deviations away."""
    path = tmp_path / "rows.csv"
    path.write_text("age,weight,height,pulse\n0.1,0.2,-0.3,0.1\n0,30,0,0\n")
    return path


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_have_distance_familiarity_and_flag(task: str, tmp_path: Path) -> None:
    """The numbers are those of the prediction; a far row has the smallest p-value 1/(n + 1) and is flagged, a mean row is not."""
    trained = TrainedModel.open(familiar_run(tmp_path / "run", task))
    raw = torch.cat([torch.zeros(1, DIM), FAR])
    prediction = trained.predict(raw)
    assert prediction.distance is not None
    near, far = trained.rows(raw)
    assert [near.distance, far.distance] == pytest.approx(prediction.distance.tolist(), rel=1e-5)
    assert far.familiarity == pytest.approx(1 / (CALIBRATION + 1))
    assert (near.unfamiliar, far.unfamiliar) == (False, True)
    assert far.distance is not None and near.distance is not None and far.distance > near.distance
    assert {"distance", "familiarity", "unfamiliar"} <= far.to_json().keys()


def test_the_rate_decides_what_is_unfamiliar(folder: Path) -> None:
    """The flag is the comparison of familiarity with the rate: of the operating point, or the one that is asked for."""
    trained = TrainedModel.open(folder)
    assert trained.false_alarm_rate == 0.05
    raw = rows(200, 3)
    for rate in (0.01, 0.2, 0.5):
        flagged = [row.unfamiliar for row in trained.with_false_alarm_rate(rate).rows(raw)]
        assert flagged == [(row.familiarity or 1.0) <= rate for row in trained.rows(raw)]
    assert (
        trained.with_operating_point(OperatingPoint(0.9, 0.5, 10, "ten", 0.8, 0.9, false_alarm_rate=0.2)).false_alarm_rate == 0.2
    )
    with pytest.raises(InputError, match="strictly between"):
        trained.with_false_alarm_rate(0.0)


def test_flags_that_can_never_come_are_said(tmp_path: Path, table: Path) -> None:
    """Ten calibration examples have p-values of at least 1/11: at 0.05 nothing can be flagged, and every command says so."""
    few = familiar_run(tmp_path / "few", calibration=10)
    trained = TrainedModel.open(few)
    assert trained.flag_problem is not None
    assert "19 examples are needed" in trained.flag_problem
    assert trained.with_false_alarm_rate(0.1).flag_problem is None
    result = command("predict", few, table)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("no input can be flagged") == 1
    none = TrainedModel.open(familiar_run(tmp_path / "none", calibration=0))
    row = none.rows(FAR)[0]
    assert (row.familiarity, row.unfamiliar) == (None, None)
    assert row.distance is not None
    assert "with 0 calibration examples" in (none.flag_problem or "")


# -- the record ----------------------------------------------------------------------------------------------------------------


def test_the_record_is_read_with_the_model(folder: Path) -> None:
    record = TrainedModel.open(folder).calibration
    assert record is not None
    assert (record.n, record.smallest_rate) == (CALIBRATION, 1 / (CALIBRATION + 1))
    content = json.loads((folder / FILE).read_text())
    assert content.keys() == {"format", "n", "data", "weights", "smallest_rate"}


@pytest.mark.parametrize(
    "changes",
    [{"n": 0}, {"n": "9"}, {"data": 3}, {"weights": 1}, {"format": None}, {"smallest_rate": 0.5}, {"more": 1}],
)
@pytest.mark.no_typecheck
def test_a_damaged_record_is_an_error(folder: Path, changes: dict[str, object]) -> None:
    content = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**content, **changes}))
    with pytest.raises(CheckpointError, match=FILE):
        TrainedModel.open(folder)
    (folder / FILE).write_text("{")
    with pytest.raises(CheckpointError, match=FILE):
        TrainedModel.open(folder)


def test_a_record_of_other_ranks_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crash between the two writes of a renewal leaves the old description, which would be wrong."""
    for n, weights, reason in ((5, None, "keeps 99"), (CALIBRATION, "other", "other weights")):
        CalibrationRecord(n, "old", weights).save(folder)
        with caplog.at_level(logging.WARNING, "ltnode"):
            assert TrainedModel.open(folder).calibration is None
        assert reason in caplog.text


# -- renewal -------------------------------------------------------------------------------------------------------------------


def test_renewed_ranks_follow_the_new_source(folder: Path, tmp_path: Path) -> None:
    """Rows shifted by 4 standard deviations are all unfamiliar; calibrated on such rows, about 5 % of new ones are.

    With 400 calibration and 400 new rows the standard deviation of the share is sqrt(2 x 0.05 x 0.95 / 400) = 0.015; 5 of them.
    """
    shifted = rows(800, 5) + 4.0
    before = TrainedModel.open(folder)
    probs = [row.probs for row in before.rows(shifted[:5])]
    assert all(row.unfamiliar for row in before.rows(shifted))
    path = tmp_path / "new.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in shifted[:400].tolist()))
    result = command("calibrate", folder, "--data", path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "400 inputs of new.csv" in result.stdout and "0.00249" in result.stdout
    after = TrainedModel.open(folder)
    assert after.calibration == CalibrationRecord(400, "400 inputs of new.csv", before.weights_digest())
    assert after.weights_digest() == before.weights_digest()
    assert sum(row.unfamiliar or False for row in after.rows(shifted[400:])) / 400 == pytest.approx(0.05, abs=0.075)
    assert [row.probs for row in after.rows(shifted[:5])] == probs


def test_a_limit_draws_that_many(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("\n".join("1,2,3,4" for _ in range(30)))
    trained = TrainedModel.open(folder)
    raw, description = new_examples(trained, tmp_path / "new.csv", 7)
    assert (len(raw), description) == (7, "7 inputs of new.csv")
    result = command("calibrate", folder, "--data", tmp_path / "new.csv", "--limit", "7")
    assert result.exit_code == 0, result.output
    assert "no input can be flagged" in result.stderr


def test_models_without_familiarity_are_not_calibrated(tmp_path: Path) -> None:
    import ltnode

    model = ltnode.build("lt-node", "concentric", seed=0, width=8)
    ltnode.save(model, tmp_path / "m")
    trained = TrainedModel.open(tmp_path / "m")
    with pytest.raises(InputError, match="not fitted"):
        renew_calibration(trained, torch.zeros(3, 2), "three")
    with pytest.raises(InputError, match="no distance to explain"):
        explain(trained, torch.zeros(1, 2))


# -- explanations --------------------------------------------------------------------------------------------------------------


def test_the_column_that_is_far_explains_the_distance(folder: Path) -> None:
    """Reference: the distances of the model itself with one column replaced by its training mean, to float32 rounding."""
    trained = TrainedModel.open(folder)
    assert isinstance(trained.model, FamiliarModel)
    (found,) = explain(trained, FAR)
    x = trained.prepare(FAR)
    for column in range(DIM):
        changed = x.clone()
        changed[0, column] = trained.model.input_mean[column]
        fall = float(trained.model.distance(x) - trained.model.distance(changed))
        assert float(found.falls[column]) == pytest.approx(fall, abs=1e-4)
    assert float(found.shares.sum()) == pytest.approx(1.0)
    assert found.to_json()["columns"][0]["column"] == "2"
    assert found.describe(("age", "weight", "height", "pulse")).startswith("100% column weight") or "weight" in found.describe(
        ("age", "weight", "height", "pulse")
    )


@pytest.mark.parametrize(
    ("cells", "words"),
    [((0, 0), "at the top left"), ((4, 4), "in the centre"), ((7, 3), "at the bottom centre"), (None, "spread over the whole")],
)
def test_a_map_is_described_by_its_largest_part(cells: tuple[int, int] | None, words: str) -> None:
    falls = torch.zeros(8, 8) if cells else torch.ones(8, 8)
    if cells:
        falls[cells] = 2.0
    assert words in Explanation(falls).describe()
    assert Explanation(-torch.ones(8, 8)).describe() == "no single part"


def test_predict_explains_flagged_rows(folder: Path, table: Path, tmp_path: Path) -> None:
    """The flagged row names its column, in the table, in JSON and in CSV; the other row has no explanation."""
    result = command("predict", folder, table, "--explain", "flagged", "--out", tmp_path / "o.json")
    assert result.exit_code == 0, result.output
    assert "column weight" in result.stdout and "unfamiliar" in result.stdout
    first, second = json.loads((tmp_path / "o.json").read_text())["predictions"]
    assert "explanation" not in first
    assert second["explanation"]["columns"][0]["column"] == "weight"
    assert (first["unfamiliar"], second["unfamiliar"]) == (False, True)
    assert command("predict", folder, table, "--explain", "all", "--out", tmp_path / "o.csv").exit_code == 0
    with (tmp_path / "o.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert "column weight" in second["explanation"]
    assert (first["unfamiliar"], second["unfamiliar"]) == ("0", "1")
    assert float(second["familiarity"]) == pytest.approx(0.01)
    assert float(second["distance"]) > float(first["distance"])


def test_predict_with_another_rate(folder: Path, table: Path) -> None:
    document = json.loads(command("predict", folder, table, "--false-alarm-rate", "0.001", "--json").stdout)
    assert document["false_alarm_rate"] == 0.001
    assert [row["unfamiliar"] for row in document["predictions"]] == [False, False]
    assert document["calibration"]["n"] == CALIBRATION
