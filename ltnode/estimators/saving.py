"""Fitted estimators as folders: config.json and model.safetensors for the network, estimator.json for everything else.

Nothing is pickled, and everything that a folder holds is checked before it is used. Numbers are written with all their digits, so
that a loaded estimator predicts the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from ltnode import files
from ltnode.errors import CheckpointError, InputError
from ltnode.estimators.base import LTNodeEstimator
from ltnode.estimators.classifier import LTNodeClassifier
from ltnode.estimators.regressor import LTNodeRegressor
from ltnode.estimators.saved_values import Reader, labels_to_json, plain_parameters
from ltnode.models import Ensemble, LatentTimeODE
from ltnode.tables import Schema
from ltnode.training.saving import model_files, prepare_folder, restored_model

KIND = "estimator"
FILE = "estimator.json"
FORMAT = 1
_CLASSES: dict[str, type[LTNodeEstimator]] = {"LTNodeClassifier": LTNodeClassifier, "LTNodeRegressor": LTNodeRegressor}
_MOST_SAMPLES = 10_000
_MOST_THREADS = 1024


def save_estimator(estimator: LTNodeEstimator, path: str | Path) -> Path:
    """Save a fitted estimator: network, preprocessing, parameters, and what ``fit`` has recorded.

    The state of the optimiser, with which ``partial_fit`` goes on, is not saved, and a ``random_state`` that is not an integer is
    saved as None.

    Raises:
        InputError: The estimator is not fitted, or is of a class or has labels that cannot be saved.
        CheckpointError: The folder holds a training run or other files, or cannot be written.
    """
    name = type(estimator).__name__
    if _CLASSES.get(name) is not type(estimator):
        raise InputError(f"ltnode.save takes a model or one of {', '.join(_CLASSES)}, not a {name}; use joblib.dump")
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise InputError(f"this {name} is not fitted, and there is nothing to save: call fit first") from None
    content = {
        "format": FORMAT,
        "estimator": name,
        "parameters": plain_parameters(estimator.get_params(deep=False)),
        **_described(estimator),
    }
    folder = prepare_folder(Path(path), KIND)
    files.replace_files(folder, {FILE: files.json_bytes(content), **model_files(estimator.model_, KIND)})
    return folder


def load_estimator(path: str | Path, device: str | torch.device = "cpu") -> LTNodeEstimator:
    """Load an estimator that `save_estimator` wrote.

    Raises:
        CheckpointError: The folder is damaged, incomplete or not from ltnode, or its files do not fit together.
    """
    folder = Path(path)
    model = restored_model(folder, KIND, torch.float64)
    content = files.read_json(folder / FILE, lambda value: isinstance(value, dict), "a saved estimator")
    content.setdefault("refitted", False)  # files of versions without refit
    try:
        estimator = _rebuilt(Reader(content), model)
    except InputError as error:
        raise CheckpointError(f"{folder / FILE} is damaged: {error}; restore it from a backup or fit again") from error
    estimator.model_.to(device)
    return estimator


def _described(estimator: LTNodeEstimator) -> dict[str, Any]:
    """Everything but the network and the parameters."""
    several = isinstance(estimator, LTNodeRegressor)
    names = getattr(estimator, "feature_names_in_", None)
    scores = estimator.interval_scores_ if isinstance(estimator, LTNodeRegressor) else None
    return {
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "schema": None if estimator.schema_ is None else estimator.schema_.to_json(),
        "scaler": _scaler_to_json(estimator.scaler_),
        "target_scaler": _scaler_to_json(estimator.target_scaler_) if isinstance(estimator, LTNodeRegressor) else None,
        "classes": None if several else labels_to_json(estimator.classes_),
        "interval_scores": None if scores is None else scores.tolist(),
        "n_iter": int(estimator.n_iter_),
        "loss_curve": [float(value) for value in estimator.loss_curve_],
        "validation_scores": None if estimator.validation_scores_ is None else list(map(float, estimator.validation_scores_)),
        "validation_rows": None if estimator.validation_rows_ is None else estimator.validation_rows_.tolist(),
        "calibration_rows": None if estimator.calibration_rows_ is None else estimator.calibration_rows_.tolist(),
        "split_seed": getattr(estimator, "_split_seed", 0),
        "refitted": getattr(estimator, "_refitted", False),
    }


def _rebuilt(reader: Reader, model: Any) -> LTNodeEstimator:
    """Make the estimator of the content of a file, which may be anything."""
    reader.require("format", reader.integer("format", 1, FORMAT) == FORMAT)
    kind = reader.choice("estimator", _CLASSES)
    estimator = _CLASSES[kind](**reader.parameters("parameters", _CLASSES[kind]._get_param_names()))
    estimator._check_parameters()
    reader.require("parameters", int(estimator.samples) <= _MOST_SAMPLES)
    reader.require("parameters", estimator.n_threads == "auto" or int(estimator.n_threads) <= _MOST_THREADS)
    reader.require(
        "estimator", isinstance(model, LatentTimeODE | Ensemble) and model.task == estimator._task and model.spec is not None
    )
    spec = model.spec["input"]
    estimator.model_ = model
    estimator.n_features_in_ = reader.integer("n_features", 1, 1 << 24)
    names = reader.texts("feature_names", estimator.n_features_in_)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    schema = reader.value("schema")
    estimator.schema_ = None if schema is None else Schema.from_json(schema)
    _check_columns(reader, estimator, spec["shape"])
    estimator.scaler_ = _scaler(reader, "scaler", spec["shape"][0])
    if isinstance(estimator, LTNodeRegressor):
        estimator.target_scaler_ = _scaler(reader, "target_scaler", model.n_targets)
        estimator.interval_scores_ = reader.scores("interval_scores", model.n_targets)
    else:
        estimator.classes_ = reader.labels("classes", spec["n_classes"])
    _restore_records(reader, estimator)
    return estimator


def _check_columns(reader: Reader, estimator: LTNodeEstimator, shape: Any) -> None:
    """Require that the columns and their features fit the network."""
    schema = estimator.schema_
    features = estimator.n_features_in_ if schema is None else len(schema.features)
    reader.require("schema", list(shape) == [features])
    if schema is not None:
        used = {column.name for column in schema.columns}
        reader.require("schema", hasattr(estimator, "feature_names_in_") and used <= set(estimator.feature_names_in_))


def _restore_records(reader: Reader, estimator: LTNodeEstimator) -> None:
    estimator.n_iter_ = reader.integer("n_iter", 0, 1 << 40)
    estimator.loss_curve_ = list(reader.numbers("loss_curve"))
    scores = reader.value("validation_scores")
    estimator.validation_scores_ = None if scores is None else list(reader.numbers("validation_scores"))
    estimator.validation_rows_ = reader.row_numbers("validation_rows")
    estimator.calibration_rows_ = reader.row_numbers("calibration_rows")
    estimator._split_seed = reader.integer("split_seed", 0, (1 << 32) - 1)
    estimator._refitted = reader.boolean("refitted")
    estimator._partial_state = None


def _scaler_to_json(scaler: StandardScaler) -> dict[str, Any]:
    return {"mean": scaler.mean_.tolist(), "scale": scaler.scale_.tolist(), "var": scaler.var_.tolist()}


def _scaler(reader: Reader, name: str, size: int) -> StandardScaler:
    inner = reader.inner(name, {"mean", "scale", "var"})
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = (np.array(inner.numbers(key, size)) for key in ("mean", "scale", "var"))
    reader.require(name, bool((scaler.scale_ > 0).all()))
    scaler.n_features_in_ = size
    return scaler
