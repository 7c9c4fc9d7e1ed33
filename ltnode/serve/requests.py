"""What a client may ask for: one pydantic model per kind of request, which checks it and describes it in /openapi.json."""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from ltnode.errors import InputError
from ltnode.serve.limits import Limits

LIMIT_OF_FIELD = {
    "inputs": "images",
    "rows": "images",
    **{name: name for name in ("images", "samples", "points", "angles", "models")},
}
"""Field of a request -> the limit (`Limits`) on its value, or on its length where it is a list."""
_MOST_DIMENSIONS = 3
_MOST_COLUMNS, _LONGEST_TEXT = 10_000, 1000
_LARGEST = float(np.finfo(np.float32).max)
_JSON_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def json_kind(value: Any) -> str:
    """Name the JSON type of a value for an error message."""
    return "null" if value is None else _JSON_NAMES.get(type(value), type(value).__name__)


def _number_array(value: Any) -> NDArray[np.float32]:
    """Convert nested lists, at most three levels deep, to an array that is much smaller than the Python objects.

    We go level by level and stop at the first that does not fit; pydantic would report each of a million wrong numbers.
    """
    if not isinstance(value, list):
        raise ValueError(f"expected a nested list of numbers, found {json_kind(value)}")
    level: list[Any] = [value]
    shape: list[int] = []
    while set(map(type, level)) == {list}:
        if len(shape) == _MOST_DIMENSIONS:
            raise ValueError(f"expected at most {_MOST_DIMENSIONS} levels of lists, found more")
        shortest, longest = min(map(len, level)), max(map(len, level))
        if shortest != longest:
            raise ValueError(f"expected lists of equal length, found a list of {shortest} in place of {longest}")
        shape.append(longest)
        level = list(itertools.chain.from_iterable(level))
    if not level:
        raise ValueError("expected numbers, found an empty list")
    kinds = set(map(type, level))
    allowed = {list} if list in kinds else {int, float}
    if not kinds <= allowed:
        wrong = next(item for item in level if type(item) not in allowed)
        expected = "a list" if list in kinds else "a number"
        raise ValueError(f"expected a nested list of numbers, found {json_kind(wrong)} in place of {expected}")
    try:
        numbers = np.array(level, dtype=np.float64).reshape(shape)
    except OverflowError:  # an integer beyond the range of float64
        numbers = np.array(np.inf)
    if not (np.abs(numbers) <= _LARGEST).all():
        raise ValueError("expected finite numbers in the range of float32, found numbers that are too large")
    return numbers.astype(np.float32)


def _file_content(value: Any) -> bytes:
    """Decode an image file in base64, with or without the head of a ``data:`` address; files of a form are bytes already."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError(f"an image must be a file in base64, not {json_kind(value)}")
    encoded = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not base64: send the bytes of an image file, encoded in base64 without line breaks") from None


def _whole(value: Any) -> Any:
    # In JSON, 2.0 is an integer too, and some languages write integers that way.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _table_row(value: Any) -> dict[str, Any]:
    """Check a row of a table: an object of texts, numbers, truth values and nulls of bounded size."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"a row must be an object with a cell for every column, not {json_kind(value)}")
    if len(value) > _MOST_COLUMNS:
        raise ValueError(f"a row may have at most {_MOST_COLUMNS:,} cells, not {len(value):,}")
    for name, cell in value.items():
        if not isinstance(cell, str | int | float | None):
            raise ValueError(f"the cell {name[:40]!r} must be a text, a number, true, false or null, not {json_kind(cell)}")
        if len(name) > _LONGEST_TEXT or (isinstance(cell, str) and len(cell) > _LONGEST_TEXT):
            raise ValueError(f"texts of a row may have at most {_LONGEST_TEXT:,} characters, as {name[:40]!r} has not")
        if isinstance(cell, int | float) and abs(cell) > _LARGEST:
            raise ValueError(f"the cell {name[:40]!r} must be a number in the range of float32")
    return value


_ROW_SCHEMA = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]},
    "description": "A cell for every column of the model; null is a missing cell.",
}
_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_ROWS = {"type": "array", "items": _NUMBERS, "minItems": 1}
_PLANES = {"type": "array", "items": _ROWS, "minItems": 1}
_ARRAY_SCHEMA = {
    "anyOf": [_NUMBERS, _ROWS, _PLANES],
    "description": "A vector (D), or an image (C, H, W), or (H, W) where C is 1: integers 0..255 or numbers 0..1.",
}
_FILE_SCHEMA = {"type": "string", "contentEncoding": "base64", "description": "An image file (PNG, JPEG, ...) in base64."}
Array = Annotated[NDArray[np.float32], PlainValidator(_number_array), WithJsonSchema(_ARRAY_SCHEMA)]
ImageFile = Annotated[bytes, PlainValidator(_file_content), WithJsonSchema(_FILE_SCHEMA)]
# `fail_fast`: one wrong item is enough to refuse a list, and there may be a hundred thousand.
Arrays = Annotated[list[Array], Field(fail_fast=True, min_length=1)]
ImageFiles = Annotated[list[ImageFile], Field(fail_fast=True, min_length=1)]
TableRow = Annotated[dict[str, Any], PlainValidator(_table_row), WithJsonSchema(_ROW_SCHEMA)]
TableRows = Annotated[list[TableRow], Field(fail_fast=True, min_length=1)]
Model = Annotated[str | None, Field(description="Name of a model; optional if the server has only one.")]
# The validator comes last, so that /openapi.json shows the bounds as those of a number.
Count = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
PointCount = Annotated[int, Field(ge=2, le=1_000_000), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_whole)]
Samples = Annotated[Count, Field(description="Number of end-times S that a prediction averages.")]


class ApiRequest(BaseModel):
    """A body or query; unknown keys, texts in place of numbers, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


AnyRequest = TypeVar("AnyRequest", bound=ApiRequest)


def check_limits(request: AnyRequest, limits: Limits) -> AnyRequest:
    """Reduce default values to the limits of the server, and refuse explicit values beyond them with an InputError."""
    reduced: dict[str, Any] = {}
    for field, name in LIMIT_OF_FIELD.items():
        value = getattr(request, field, None)
        most = getattr(limits, name)
        count = len(value) if isinstance(value, list) else value or 0
        if count > most and field in request.model_fields_set:
            raise InputError(f"{count} {name} are too many; this server allows at most {most} in one request")
        if count > most:
            reduced[field] = value[:most] if isinstance(value, list) else most
    return request.model_copy(update=reduced)


class InputRequest(ApiRequest):
    """A request with inputs, which can be sent in several forms: a client must choose exactly one."""

    forms: ClassVar[tuple[str, ...]]
    """Names of the fields: one for arrays, one for rows of a table, and the others for image files."""

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, values: dict[str, Any]) -> dict[str, Any]:
        present = [name for name in cls.forms if values.get(name) is not None]
        if len(present) != 1:
            raise ValueError(f"give exactly one of {', '.join(cls.forms)}, not {' and '.join(present) or 'none'}")
        return values

    @property
    def has_files(self) -> bool:
        """Whether there are image files to decode, which takes a while."""
        return all(getattr(self, name) is None for name in self.forms[:2])


class PredictRequest(InputRequest):
    """Inputs to predict: ``inputs``, ``rows`` or ``images``."""

    forms = ("inputs", "rows", "images")

    model: Model = None
    inputs: Annotated[Arrays | None, Field(description="Raw inputs, one array each.")] = None
    rows: Annotated[TableRows | None, Field(description="Rows of a table, each an object with all columns of the model.")] = None
    images: Annotated[ImageFiles | None, Field(description="Image files of any size; notes describe the conversion.")] = None
    samples: Samples = 10

    @property
    def table_rows(self) -> list[dict[str, Any]]:
        """The rows of a table; none for other inputs."""
        return list(self.rows or ())


class Change(ApiRequest):
    """Changes of an image, applied in this order."""

    rotation: Annotated[float, Field(ge=0, le=180, description="Degrees, counter-clockwise.")] = 0.0
    noise: Annotated[float, Field(ge=0, le=1, description="Standard deviation of Gaussian noise; pixels span 0..1.")] = 0.0
    epsilon: Annotated[float, Field(ge=0, le=1, description="FGSM strength in units of the normalised input.")] = 0.0
    seed: Annotated[Seed, Field(description="Seed of the noise.")] = 0


class OneInputRequest(InputRequest):
    """A request about one input: exactly one of ``input``, ``row``, ``image``, ``sample``."""

    forms = ("input", "row", "image", "sample")

    input: Annotated[Array | None, Field(description="A raw input.")] = None
    row: Annotated[TableRow | None, Field(description="A row of a table: an object with all columns of the model.")] = None
    image: Annotated[ImageFile | None, Field(description="An image file.")] = None
    sample: Annotated[str | None, Field(description="Id of a sample image.")] = None

    @property
    def table_rows(self) -> list[dict[str, Any]]:
        """The row of a table; none for other inputs."""
        return [] if self.row is None else [self.row]


class TrajectoryRequest(OneInputRequest):
    """One input, and how to change it."""

    model: Model = None
    change: Change = Field(default_factory=Change)
    points: Annotated[PointCount, Field(description="Number of times at which the ODE is stopped.")] = 61
    samples: Samples = 10
    explain: Annotated[bool, Field(description="Also say what makes the input unfamiliar; costs a prediction per part.")] = False


class SweepRequest(OneInputRequest):
    """One image, the angles by which to rotate it, and the models that predict it."""

    models: Annotated[list[str], Field(fail_fast=True, min_length=1, description="Names of image classifiers of one shape.")]
    angles: Annotated[
        list[Annotated[float, Field(ge=-360, le=360)]], Field(fail_fast=True, min_length=1, description="Degrees.")
    ] = Field(default_factory=lambda: [float(angle) for angle in range(0, 181, 15)])
    samples: Samples = 10


class CurveRequest(ApiRequest):
    """A query: which regression model to evaluate, and at how many inputs."""

    # Every value of a query is a text, and HTTP clients may add parameters.
    model_config = ConfigDict(strict=False, extra="ignore")

    model: Model = None
    points: Annotated[PointCount, Field(description="Number of inputs.")] = 200
    samples: Samples = 10


class EffectRequest(ApiRequest):
    """A row of a table, and the column that is varied."""

    model: Model = None
    row: Annotated[TableRow, Field(description="The row, an object with all columns of the model.")]
    column: Annotated[
        str, Field(max_length=_LONGEST_TEXT, description="The column that is varied; the other cells stay as they are.")
    ]
    points: Annotated[PointCount, Field(description="Number of values of a number or a date.")] = 61
    samples: Samples = 10
