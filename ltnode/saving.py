"""``ltnode.save`` and ``ltnode.load``: models and scikit-learn estimators as folders, without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ltnode.errors import InputError, MissingExtraError
from ltnode.models import Model
from ltnode.training import saving as models
from ltnode.training.run_config import kind_of_folder

if TYPE_CHECKING:
    from ltnode.estimators import LTNodeClassifier, LTNodeRegressor

__all__ = ["load", "save"]


def save(model: Model | LTNodeClassifier | LTNodeRegressor, path: str | Path) -> Path:
    """Save a model, or a fitted estimator with its preprocessing.

    A model is saved with its weights, posterior, buffers and prediction grid, and the description from which it can be rebuilt.
    An estimator is saved with all that it needs to predict: schema, standardisation, labels and calibration.

    Args:
        model: Any model, or a fitted `LTNodeClassifier` or `LTNodeRegressor`. Load a model with user-defined parts by
            ``ltnode.load(path, model=my_model)``.
        path: A folder, which is created; what was saved in it earlier is replaced.

    Raises:
        InputError: It is neither, or the estimator is not fitted.
        CheckpointError: The folder holds a training run or other files, or cannot be written.
    """
    if isinstance(model, Model):
        return models.save(model, path)
    try:
        from ltnode.estimators.base import LTNodeEstimator
        from ltnode.estimators.saving import save_estimator
    except MissingExtraError:
        raise _neither(model) from None
    if not isinstance(model, LTNodeEstimator):
        raise _neither(model)
    return save_estimator(model, path)


def load(path: str | Path, model: Model | None = None, device: str | torch.device = "cpu") -> Any:
    """Load what a folder holds: the `Model` of a run folder or of `save`, in eval mode, or the estimator that `save` wrote.

    Nothing in the folder is executed: weights are safetensors, the rest is JSON, and everything is checked.

    Args:
        path: The folder.
        model: A model with user-defined parts of the same shapes, whose weights are replaced; not needed for models of
            `ltnode.build`, and not for estimators.
        device: Device of the model.

    Raises:
        CheckpointError: The folder is missing, damaged, incomplete or not from ltnode, or the weights do not fit the model.
        MissingExtraError: The folder holds an estimator, and scikit-learn is not installed.
    """
    if kind_of_folder(Path(path)) != "estimator":
        return models.load(path, model, device)
    if model is not None:
        raise InputError(f"{path} holds an estimator, which brings its own model: call ltnode.load(path)")
    from ltnode.estimators.saving import load_estimator

    return load_estimator(path, device)


def _neither(given: Any) -> InputError:
    return InputError(f"ltnode.save takes a model, or a fitted LTNodeClassifier or LTNodeRegressor, not a {type(given).__name__}")
