"""Renewed ranks: distances of new examples replace those among which familiarity was measured so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ltnode import files
from ltnode.data import Dataset, Split
from ltnode.data.image_files import ImageFiles
from ltnode.data.streaming import StreamedTensor
from ltnode.device import product_precision
from ltnode.errors import InputError
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained.calibration import drawn, held_out_examples
from ltnode.trained.calibration_record import FILE, CalibrationRecord
from ltnode.trained.inputs import find_files
from ltnode.trained.model import TrainedModel
from ltnode.training.saving import weights_file
from ltnode.typing import Num, Tensor


def new_examples(trained: TrainedModel, data: str | Path, limit: int | None = None) -> tuple[Num[Tensor, "N *shape"], str]:
    """Read raw inputs to calibrate on, and describe them; labels are not needed.

    Args:
        trained: The model.
        data: A file or a folder as in ``ltnode predict``, or the name of a data set. Of the data set of the training, the
            examples that it held out are used, or a fixed random half of the test examples if it held out none.
        limit: Use at most this many, drawn at random (seed 0).

    Raises:
        InputError: There are no such files or no such data set, or the inputs do not fit the model.
    """
    path = Path(data)
    if path.exists():
        raw = _read(path, trained)
        split = drawn(Split(raw, torch.zeros(len(raw), dtype=torch.long)), limit)
        return split.x, f"{len(split)} inputs of {path.resolve().name}"
    split, description = _of_data_set(trained, trained.dataset(str(data)))
    split = drawn(split, limit)
    return split.x, description.format(n=len(split))


def _of_data_set(trained: TrainedModel, dataset: Dataset) -> tuple[Split, str]:
    """Examples of a data set that the training did not use."""
    if dataset.name != trained.data:
        return dataset.train, f"{{n}} training examples of {dataset.name}, on which the model was not trained"
    held_out = trained.calibration_split(dataset)
    return held_out_examples(trained, dataset) if held_out is None else (held_out, held_out_description(trained, dataset.name))


def held_out_description(trained: TrainedModel, data: str) -> str:
    """Describe the examples that a training held out for calibration, with ``{n}`` for their number."""
    assert trained.config is not None
    share, seed = trained.config.calibration_fraction, trained.config.parts_seed
    return f"{{n}} examples of {data} that training held out, and on which nothing was chosen (share {share:g}, seed {seed})"


def renew_calibration(trained: TrainedModel, raw: Num[Tensor, "N *shape"], data: str) -> TrainedModel:
    """Rank distances among those of new examples from now on, and write the model and its record if it has a folder.

    Args:
        trained: A model whose familiarity is fitted; its ranks are replaced.
        raw: Raw inputs from the source on which the false-alarm rate is to hold. Nothing may have been fitted to them.
        data: Description of the inputs.

    Raises:
        InputError: The familiarity of the model is not fitted, or the inputs do not fit it.
        CheckpointError: The files cannot be written; the old ones are unchanged.
    """
    if not isinstance(trained.model, FamiliarModel) or not trained.has_familiarity:
        raise InputError(f"{trained.flag_problem}")
    with product_precision("fp32"):
        trained.model.calibrate_familiarity(_prepared(trained, raw))
    record = CalibrationRecord(trained.n_calibration, data, trained.weights_digest())
    if trained.path is not None:
        files.replace_files(trained.path, {FILE: files.json_bytes(record.to_json()), **weights_file(trained.model)})
    return replace(trained, calibration=record)


def _prepared(trained: TrainedModel, raw: Num[Tensor, "N *shape"]) -> Tensor:
    """Network inputs; those that are read while they are used are prepared when they are read."""
    like = next(trained.model.parameters())
    return raw.changed(trained.prepare, like.dtype, like.device) if isinstance(raw, StreamedTensor) else trained.prepare(raw)


def _read(path: Path, trained: TrainedModel) -> Num[Tensor, "N *shape"]:
    """The inputs of a file, or the images of a folder, which are read while they are used."""
    if not path.is_dir() or len(trained.shape) != 3:
        return torch.cat([_inputs(file, trained) for file in find_files(path)])
    channels, rows, columns = trained.shape
    return StreamedTensor(ImageFiles(tuple(find_files(path)), (channels, rows, columns)))


def _inputs(file: Path, trained: TrainedModel) -> Num[Tensor, "B *shape"]:
    raw = trained.read(file).raw
    # Files of pixels and of floats in [0, 1] can be mixed.
    return raw if not trained.is_image or raw.dtype != torch.uint8 else raw.float() / 255
