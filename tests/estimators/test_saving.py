"""``ltnode.save`` and ``ltnode.load`` of estimators: the same bits, no pickle, and hostile folders are refused."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import ltnode
from ltnode.errors import CheckpointError, InputError
from ltnode.models import Ensemble

QUICK = {"max_epochs": 1, "width": 4, "random_state": np.int64(3)}


def rows(n=120):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"a": rng.normal(size=n), "b": rng.choice(["x", "y"], size=n), "c": np.where(rng.random(n) < 0.2, np.nan, 1.5)}
    )
    return X.assign(c=X["c"] * rng.normal(size=n)), rng.normal(size=(n, 2)) / 3


@pytest.fixture(scope="module")
def estimators():
    """A classifier and regressors with one and several targets, on frames and matrices."""
    X, y = rows()
    matrix = X[["a"]].to_numpy() / 7
    return {
        "frame classifier": (ltnode.LTNodeClassifier(**QUICK).fit(X, np.where(y[:, 0] > 0, "yes", "no")), X),
        "matrix classifier": (ltnode.LTNodeClassifier("amortized", **QUICK).fit(matrix, (y[:, 0] > 0) + 5), matrix),
        "frame regressor": (ltnode.LTNodeRegressor(noise="varying", **QUICK).fit(X, y[:, 0]), X),
        "matrix regressor": (ltnode.LTNodeRegressor(noise="constant", **QUICK).fit(matrix, y, np.arange(120)), matrix),
    }


CASES = ["frame classifier", "matrix classifier", "frame regressor", "matrix regressor"]


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_estimator_predicts_the_same_bits(case, estimators, tmp_path):
    estimator, X = estimators[case]
    loaded = ltnode.load(ltnode.save(estimator, tmp_path / "saved"))
    assert type(loaded) is type(estimator)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["config.json", "estimator.json", "model.safetensors"]
    np.testing.assert_array_equal(loaded.predict(X), estimator.predict(X))
    assert loaded.predict(X).dtype == estimator.predict(X).dtype
    for name, values in estimator.predict_uncertainty(X).as_dict().items():
        np.testing.assert_array_equal(getattr(loaded.predict_uncertainty(X), name), values)
    if "regressor" in case:
        np.testing.assert_array_equal(loaded.predict_interval(X), estimator.predict_interval(X))
    else:
        np.testing.assert_array_equal(loaded.predict_log_proba(X), estimator.predict_log_proba(X))
    assert loaded.get_params() == estimator.get_params()
    for name in ("n_iter_", "loss_curve_", "validation_scores_", "schema_", "n_features_in_"):
        assert getattr(loaded, name) == getattr(estimator, name)
    np.testing.assert_array_equal(loaded.calibration_rows_, estimator.calibration_rows_)


def test_folders_are_reproducible_replaceable_and_known_by_kind(estimators, tmp_path, caplog):
    """The same estimator gives the same bytes; a model folder and an estimator folder are not mixed up."""
    estimator, X = estimators["frame classifier"]
    first, second = ltnode.save(estimator, tmp_path / "a"), ltnode.save(estimator, tmp_path / "b")
    ltnode.save(estimator, tmp_path / "a")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    with pytest.raises(CheckpointError, match="holds a scikit-learn estimator, not a run folder or a saved model: load it with"):
        ltnode.TrainedModel.open(first)
    ltnode.save(estimator.model_, tmp_path / "model")
    assert "ltnode.save(estimator, folder)" in caplog.text
    assert isinstance(ltnode.load(tmp_path / "model"), Ensemble)
    with pytest.raises(CheckpointError, match="holds a saved model; save the estimator in another folder"):
        ltnode.save(estimator, tmp_path / "model")
    with pytest.raises(InputError, match="brings its own model"):
        ltnode.load(first, model=estimator.model_)
    again = ltnode.load(first).set_params(warm_start=True, max_epochs=1).fit(X, estimator.predict(X))
    assert again.n_iter_ == 1


@pytest.mark.no_typecheck
def test_what_cannot_be_saved_is_refused(estimators, tmp_path):
    with pytest.raises(InputError, match="is not fitted, and there is nothing to save"):
        ltnode.save(ltnode.LTNodeClassifier(), tmp_path / "x")
    for wrong in ({}, torch.nn.Linear(1, 1)):
        with pytest.raises(InputError, match="takes a model, or a fitted LTNodeClassifier or LTNodeRegressor"):
            ltnode.save(wrong, tmp_path / "x")

    class Mine(ltnode.LTNodeClassifier):
        pass

    mine = Mine()
    vars(mine).update(vars(estimators["matrix classifier"][0]))
    with pytest.raises(InputError, match="not a Mine; use joblib.dump"):
        ltnode.save(mine, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def changed(content, path, value):
    *parents, last = path
    inner = content
    for key in parents:
        inner = inner[key]
    inner[last] = value


HOSTILE = [
    (("format",), 2),
    (("estimator",), "os.system"),
    (("parameters", "samples"), 10**9),
    (("parameters", "n_threads"), 10**9),
    (("parameters", "samples"), "many"),
    (("parameters", "evil"), 1),
    (("parameters", "end_time"), {"a": 1}),
    (("n_features",), -1),
    (("feature_names",), ["a", "a", "c"]),
    (("feature_names",), None),
    (("schema", "columns"), []),
    (("schema",), None),
    (("scaler", "scale"), [0.0] * 5),
    (("scaler", "mean"), [1e999]),
    (("scaler", "mean"), "0"),
    (("target_scaler",), None),
    (("target_scaler", "scale"), [1.0, 1.0]),
    (("interval_scores",), [2.0, 1.0]),
    (("interval_scores",), [-1.0]),
    (("interval_scores",), [[1.0]]),
    (("interval_scores",), []),
    (("n_iter",), True),
    (("loss_curve",), {"a": 1}),
    (("validation_rows",), [3, 3]),
    (("calibration_rows",), [2**70]),
    (("split_seed",), -1),
]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=str)
def test_hostile_values_are_refused_with_one_line(path, value, estimators, tmp_path):
    folder = ltnode.save(estimators["frame regressor"][0], tmp_path / "saved")
    content = json.loads((folder / "estimator.json").read_text())
    changed(content, path, value)
    (folder / "estimator.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="estimator.json is damaged") as caught:
        ltnode.load(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.no_typecheck
@pytest.mark.parametrize("classes", [["b", "a"], ["a", "a"], ["a"], [1, 2], "ab", None, ["a", "b" * 10_000]], ids=str)
def test_hostile_labels_are_refused(classes, estimators, tmp_path):
    folder = ltnode.save(estimators["frame classifier"][0], tmp_path / "saved")
    content = json.loads((folder / "estimator.json").read_text())
    content["classes"]["values"] = classes
    (folder / "estimator.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="estimator.json is damaged: classes"):
        ltnode.load(folder)


def test_files_that_are_missing_mixed_up_or_pickles_are_refused(estimators, tmp_path):
    folder = ltnode.save(estimators["frame regressor"][0], tmp_path / "saved")
    other = ltnode.save(estimators["matrix classifier"][0], tmp_path / "other")
    content = (folder / "estimator.json").read_bytes()
    shutil.copy(other / "estimator.json", folder / "estimator.json")
    with pytest.raises(CheckpointError, match="estimator.json is damaged"):
        ltnode.load(folder)
    (folder / "estimator.json").write_bytes(pickle.dumps(estimators["frame regressor"][0].get_params()))
    with pytest.raises(CheckpointError, match="not valid JSON"):
        ltnode.load(folder)
    (folder / "estimator.json").unlink()
    with pytest.raises(CheckpointError, match="estimator.json is missing"):
        ltnode.load(folder)
    (folder / "estimator.json").write_bytes(content)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model.safetensors is missing; restore it from a backup"):
        ltnode.load(folder)
    with pytest.raises(CheckpointError, match="is not a folder"):
        ltnode.load(tmp_path / "nothing")
