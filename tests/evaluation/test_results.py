"""Files of results: complete after every protocol, continued, and refused if they belong to another evaluation."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from tiny_problem import image_data, image_run, other_data

import ltnode
from ltnode.errors import CheckpointError, ConfigError
from ltnode.evaluation import PROTOCOLS, Cost, ResultRow, evaluate, read_provenance, read_rows
from ltnode.evaluation import protocols as protocol_table

OPTIONS = {"draws": 0, "angles": (45,), "epsilons": (0.1,)}


@pytest.fixture(scope="module")
def data():
    return image_data()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return image_run("lt-node", data, epochs=1, out=tmp_path_factory.mktemp("run") / "lt")


def content(rows):
    """All fields but the cost, which contains times; sorted by protocol, as in a file."""
    plain = [{k: v for k, v in row.to_json().items() if k != "cost"} for row in rows]
    return sorted(plain, key=lambda row: row["protocol"])


def test_a_row_survives_json():
    """NaN, curves, settings and costs survive a round trip; JSON has no infinities and no NaN, so they are stored as null."""
    rows = [
        ResultRow("lt-node", "svhn", "paper", 3, "ood", "auroc", 0.5, 10, {"score": "entropy"}, 0, {}, Cost(14.0, 0.2, 5)),
        ResultRow("m", "d", None, None, "clean", "confidence_accuracy", (1.0, math.nan), 2, extra={"x": [0.0, 1.0]}),
    ]
    for row in rows:
        text = json.dumps(row.to_json(), allow_nan=False)
        back = ResultRow.from_json(json.loads(text))
        assert json.dumps(back.to_json()) == json.dumps(row.to_json())
        assert back.cost == row.cost
    assert math.isnan(back.curve[1])


def test_costs_are_ignored_in_comparisons():
    row = ResultRow("m", "d", None, None, "clean", "error", 0.5, 10, cost=Cost(14.0, 0.2))
    assert row == dataclasses.replace(row, cost=Cost(14.0, 0.9))
    assert row != dataclasses.replace(row, value=0.25)


def test_numbers_and_curves_are_told_apart():
    number = ResultRow("m", "d", None, None, "clean", "error", 0.5, 10)
    curve = dataclasses.replace(number, value=(0.5, 0.25))
    assert (number.number, curve.curve) == (0.5, (0.5, 0.25))
    with pytest.raises(TypeError, match="is a curve"):
        _ = curve.number
    with pytest.raises(TypeError, match="is a number"):
        _ = number.curve


def test_an_interrupted_evaluation_goes_on_where_it_stopped(run, data, tmp_path, monkeypatch):
    """The second protocol is interrupted; the next call does not repeat the first one, and returns the rows of a single call."""
    out = tmp_path / "results" / "evaluation.json"
    broken = dataclasses.replace(PROTOCOLS["rotation"], run=lambda context: (_ for _ in ()).throw(KeyboardInterrupt))
    protocols = ["clean", "rotation", "fgsm"]
    with monkeypatch.context() as patch:
        patch.setitem(protocol_table.PROTOCOLS, "rotation", broken)
        with pytest.raises(KeyboardInterrupt):
            evaluate(run, data, protocols, out=out, **OPTIONS)
    assert {row.protocol for row in read_rows(out)} == {"clean"}
    again = dataclasses.replace(PROTOCOLS["clean"], run=lambda context: pytest.fail("clean was done twice"))
    with monkeypatch.context() as patch:
        patch.setitem(protocol_table.PROTOCOLS, "clean", again)
        rows = evaluate(run, data, protocols, out=out, **OPTIONS)
    assert content(rows) == content(evaluate(run, data, protocols, **OPTIONS)) == content(read_rows(out))
    assert not list(out.parent.glob(".tmp-*"))


def test_a_file_tells_where_its_numbers_come_from(run, data, tmp_path):
    out = tmp_path / "evaluation.json"
    evaluate(run, data, ["clean", "ood"], ood=other_data(), out=out, **OPTIONS)
    json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = read_provenance(out)
    assert found["made_with"]["model"] == "lt-node"
    assert found["made_with"]["options"]["draw"] == "quantile"
    assert found["clean"]["train_config_hash"] == run.config.hash
    assert found["clean"]["data"]["checksums"] == data.checksums
    assert found["ood:others"]["ood"]["name"] == "others"
    assert {"version", "git_commit", "device", "torch", "wall_time_s", "seed"} <= set(found["clean"])


def test_results_against_two_other_sets_stand_in_one_file(run, data, tmp_path):
    out = tmp_path / "evaluation.json"
    for name in ("others", "third"):
        evaluate(run, data, ["ood"], ood=other_data(name), out=out, **OPTIONS)
    assert {row.setting["ood"] for row in read_rows(out)} == {"others", "third"}


@pytest.mark.parametrize(("change", "named"), [({"samples": 4}, "options.samples: 10 -> 4"), ({"limit": 9}, "options.limit")])
def test_a_file_of_other_options_is_not_mixed_up(run, data, tmp_path, change, named):
    out = tmp_path / "evaluation.json"
    evaluate(run, data, ["clean"], out=out, **OPTIONS)
    before = out.read_bytes()
    with pytest.raises(ConfigError, match=named):
        evaluate(run, data, ["rotation"], out=out, **OPTIONS, **change)
    assert out.read_bytes() == before
    rows = evaluate(run, data, ["rotation"], out=out, overwrite=True, **OPTIONS, **change)
    assert content(read_rows(out)) == content(rows)


def test_a_file_of_another_model_is_not_mixed_up(run, data, tmp_path):
    out = tmp_path / "evaluation.json"
    evaluate(run, data, ["clean"], out=out, **OPTIONS)
    with pytest.raises(ConfigError, match="weights_sha256"):
        evaluate(ltnode.build("lt-node", data, width=34), data, ["clean"], out=out, **OPTIONS)


@pytest.mark.parametrize("damage", ["", "{", '{"format": 1}', "[1]"])
def test_a_damaged_or_foreign_file_is_refused(run, data, tmp_path, damage):
    out = tmp_path / "evaluation.json"
    out.write_text(damage)
    with pytest.raises(CheckpointError):
        evaluate(run, data, ["clean"], out=out, **OPTIONS)
    assert out.read_text() == damage


def test_a_damaged_row_is_named(run, data, tmp_path):
    out = tmp_path / "evaluation.json"
    evaluate(run, data, ["clean"], out=out, **OPTIONS)
    values = json.loads(out.read_text())
    del values["protocols"]["clean"]["rows"][0]["metric"]
    out.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="a row cannot be read"):
        read_rows(out)


def test_a_folder_gives_the_rows_of_its_run(run, data):
    """Opened from disk: the same weights, normalisation constants and names."""
    assert content(evaluate(run.path, data, ["clean"], device="cpu", **OPTIONS)) == content(
        evaluate(run, data, ["clean"], **OPTIONS)
    )


def test_a_folder_without_a_model_is_refused(tmp_path, data):
    with pytest.raises(CheckpointError):
        evaluate(tmp_path, data, ["clean"])
