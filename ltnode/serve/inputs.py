"""Requests become batches: JSON, nested lists and image files of unknown origin, refused with a reason where they do not fit."""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ltnode.errors import InputError
from ltnode.serve.failures import ApiError, validation_reason
from ltnode.serve.limits import Limits
from ltnode.serve.samples import samples
from ltnode.serve.schemas import OneInput
from ltnode.trained import TrainedModel, decode_image
from ltnode.typing import Float, Tensor

_MOST_KEYS = 32
_LARGEST = float(np.finfo(np.float32).max)
Schema = TypeVar("Schema", bound=BaseModel)


class RawBatch(NamedTuple):
    """Raw inputs, images as floats in [0, 1], with what was done to get there."""

    raw: Float[Tensor, "B *shape"]
    notes: list[str]


def parse(body: bytes, schema: type[Schema]) -> Schema:
    """A JSON body as a request.

    Raises:
        ApiError: 400 for what is no JSON (NaN and infinity are none), 422 for what is not as the schema says.
    """
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="none")
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_json", f"the body is no JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(422, "invalid", f"the body must be a JSON object, not {_kind(value)}")
    if len(value) > _MOST_KEYS:
        raise ApiError(422, "invalid", f"the body has {len(value)} keys; known are {', '.join(schema.model_fields)}")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False, include_input=False)
        raise ApiError(422, "invalid", validation_reason(findings)) from None


def array_batch(values: list[Any], trained: TrainedModel) -> RawBatch:
    """Nested lists as a batch.

    Args:
        values: One nested list of numbers per input: (D,), (C, H, W), or (H, W) for one channel. Pixels are whole numbers
            0..255, or numbers 0..1; which of them is told for each image by its own values alone.
        trained: The model that they are for.

    Raises:
        InputError: Another shape, ragged, not numbers, not finite, or pixels out of range.
    """
    notes: list[str] = []
    rows = [_one_array(value, trained, notes, f"inputs[{n}]") for n, value in enumerate(values)]
    return RawBatch(torch.stack(rows), list(dict.fromkeys(notes)))


def image_batch(files: list[bytes], trained: TrainedModel, limits: Limits) -> RawBatch:
    """Contents of image files as a batch, with notes on what was converted.

    Raises:
        InputError: No images, or the model takes none.
    """
    if not trained.is_image:
        raise InputError(f"{trained.name} takes vectors of {trained.shape[0]} numbers, not images: send them as inputs")
    pixels, notes = [], []
    for n, data in enumerate(files):
        try:
            decoded = decode_image(data, trained.shape, max_pixels=limits.pixels)
        except InputError as error:
            raise InputError(f"image {n}: {error}" if len(files) > 1 else str(error)) from error
        pixels.append(decoded.pixels)
        notes += [f"image {n}: {note}" if len(files) > 1 else note for note in decoded.notes]
    return RawBatch(torch.stack(pixels).float() / 255, notes)


def from_base64(text: Any, limits: Limits) -> bytes:
    """Bytes of a base64 text; the head of a ``data:`` address may stand before it.

    Raises:
        InputError: It is not base64.
    """
    if not isinstance(text, str):
        raise InputError(f"an image must be a text, a file in base64, not {_kind(text)}")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if len(text) > limits.body_bytes:
        raise InputError(f"an image of {len(text):,} characters is too large")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InputError("image is not base64: send the bytes of an image file, encoded in base64 without line breaks") from None


def one_batch(request: OneInput, trained: TrainedModel, limits: Limits) -> RawBatch:
    """The one input of a request: an array, an image file or a sample picture.

    Raises:
        InputError: None or several are given, or it does not fit.
        ApiError: 404 for an unknown sample.
    """
    given = [name for name in ("input", "image", "sample") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InputError(f"give exactly one of input, image and sample, not {' and '.join(given) or 'none'}")
    if request.input is not None:
        notes: list[str] = []
        return RawBatch(_one_array(request.input, trained, notes, "input")[None], notes)
    if request.image is not None:
        return image_batch([from_base64(request.image, limits)], trained, limits)
    sample = samples().get(str(request.sample))
    if sample is None:
        raise ApiError(404, "unknown_sample", f"there is no sample {str(request.sample)[:80]!r}; /api/models lists them")
    return image_batch([sample.file.read_bytes()], trained, limits)


def _one_array(value: Any, trained: TrainedModel, notes: list[str], place: str) -> Tensor:
    shape = trained.shape
    if trained.is_image and shape[0] == 1 and _depth(value) == 2:
        flat = _flat(value, shape[1:], place)
    else:
        flat = _flat(value, shape, place)
    try:
        numbers: NDArray[np.floating[Any]] = np.array(flat, dtype=np.float64)
    except OverflowError:
        numbers = np.array([np.inf])
    if not (np.abs(numbers) <= _LARGEST).all():
        raise InputError(f"{place} holds numbers that are not finite or too large")
    if trained.is_image:
        numbers = _unit_pixels(numbers, notes, place)
    return torch.from_numpy(numbers.astype(np.float32)).reshape(shape)


def _unit_pixels(numbers: NDArray[np.floating[Any]], notes: list[str], place: str) -> NDArray[np.floating[Any]]:
    low, high = float(numbers.min()), float(numbers.max())
    if low >= 0 and high <= 1:
        return numbers
    if low < 0 or high > 255 or not (numbers == np.floor(numbers)).all():
        raise InputError(
            f"{place}: pixels must be whole numbers 0..255, or numbers 0..1; found {low:.6g} to {high:.6g}"
            + ("" if low < 0 or high > 255 else ", some of them not whole")
        )
    notes.append("pixels read as 0..255")
    return numbers.astype(np.float32) / np.float32(255)


def _flat(value: Any, shape: tuple[int, ...], place: str) -> list[Any]:
    """All numbers of a nested list that has exactly this shape; looks at no more than it must to refuse."""
    wanted = " x ".join(str(n) for n in shape)
    level = [value]
    for length in shape:
        kinds = set(map(type, level))
        if kinds != {list}:
            other = next(item for item in level if not isinstance(item, list))
            raise InputError(f"{place} must be a nested list of {wanted} numbers; found {_kind(other)} in place of a list")
        lengths = set(map(len, level))
        if lengths != {length}:
            found = sorted(lengths - {length})[0]
            raise InputError(f"{place} must be a nested list of {wanted} numbers; found a list of {found} in place of {length}")
        level = list(itertools.chain.from_iterable(level))
    if not set(map(type, level)) <= {int, float}:
        other = next(item for item in level if type(item) not in (int, float))
        raise InputError(f"{place} must be a nested list of {wanted} numbers; found {_kind(other)} in place of a number")
    return level


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, list) and depth < 4:
        value, depth = (value[0] if value else None), depth + 1
    return depth


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
