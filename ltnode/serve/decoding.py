"""From a request to raw inputs for a model: arrays and image files, refused with a reason if they do not fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ltnode.errors import InputError
from ltnode.serve.failures import ApiError
from ltnode.serve.requests import OneInputRequest, PredictRequest
from ltnode.serve.samples import Sample, samples
from ltnode.trained import TrainedModel
from ltnode.trained.images import check_image_shape
from ltnode.trained.pixels import check_pixels
from ltnode.typing import Float, Tensor


class RawBatch(NamedTuple):
    """Raw inputs, images as floats in [0, 1], and notes on how they were converted."""

    raw: Float[Tensor, "B *shape"]
    notes: list[str]


def decode_arrays(request: PredictRequest | OneInputRequest, trained: TrainedModel) -> RawBatch:
    """Convert the arrays of a request; one that does not fit the model raises an InputError."""
    if isinstance(request, PredictRequest):
        arrays = {f"inputs[{n}]": array for n, array in enumerate(request.inputs or ())}
    else:
        arrays = {} if request.input is None else {"input": request.input}
    return _decode_arrays(arrays, trained)


def image_files(request: PredictRequest | OneInputRequest, trained: TrainedModel) -> list[bytes]:
    """The image files or the sample image of a request; an InputError if the model does not take images."""
    if not trained.is_image:
        raise InputError(f"{trained.name} takes vectors of {trained.shape[0]} numbers, not images: send them as inputs")
    check_image_shape(trained.shape)
    if isinstance(request, PredictRequest):
        return request.images or []
    return [find_sample(request.sample).path.read_bytes()] if request.sample is not None else [request.image or b""]


def find_sample(name: str) -> Sample:
    """A sample image by its id; an unknown id raises an ApiError of status 404."""
    sample = samples().get(name)
    if sample is None:
        raise ApiError(404, "unknown_sample", f"there is no sample {name[:80]!r}; /api/models lists the samples")
    return sample


def _decode_arrays(arrays: Mapping[str, NDArray[Any]], trained: TrainedModel) -> RawBatch:
    rows, notes = [], []
    for place, array in arrays.items():
        try:
            raw, note = _decode_array(array, trained)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        rows.append(raw)
        notes += note
    return RawBatch(torch.stack(rows), list(dict.fromkeys(notes)))


def _decode_array(array: NDArray[Any], trained: TrainedModel) -> tuple[Tensor, list[str]]:
    """Check the shape of an array; (H, W) is allowed for one channel. Integer pixels 0..255 are scaled to [0, 1]."""
    shape = trained.shape
    if shape not in (array.shape, (1, *array.shape)):
        expected, actual = (" x ".join(str(n) for n in size) for size in (shape, array.shape))
        raise InputError(f"expected a nested list of {expected} numbers, not {actual}")
    raw = torch.from_numpy(array).reshape(shape)
    if not trained.is_image:
        return raw, []
    # JSON has only one type of number: an image of integers, some of them above 1, has pixels 0..255.
    if 1 < float(raw.max()) <= 255 and float(raw.min()) >= 0 and bool((raw == raw.floor()).all()):
        return raw / 255, ["pixels read as 0..255"]
    check_pixels(raw[None])
    return raw, []
