"""Requests as the application uses them: read, checked against the limits, and turned into batches for a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from ltnode.errors import InputError
from ltnode.serve import explore, schemas
from ltnode.serve.failures import ApiError
from ltnode.serve.inputs import RawBatch, array_batch, from_base64, image_batch, one_batch, parse
from ltnode.serve.service import Service
from ltnode.trained import TrainedModel
from ltnode.typing import Float, Tensor

_INLINE_BYTES = 64 * 1024
"""Arrays up to this size are read in the event loop: handing them over would take longer."""
_SLACK = 4
"""Requests that are a little too large are parsed, so that their answer can name the limit."""
_SPARE = 100
"""Brackets and commas of a body that belong to no array of numbers."""
_FORM_FIELDS = ("file", "model", "samples")
Asked = TypeVar("Asked")


class Prediction(NamedTuple):
    """What /api/predict was asked."""

    trained: TrainedModel
    batch: RawBatch
    samples: int


class Trajectory(NamedTuple):
    """What /api/trajectory was asked."""

    trained: TrainedModel
    batch: RawBatch
    change: schemas.Change
    points: int
    samples: int


class Sweep(NamedTuple):
    """What /api/sweep was asked; the image as it is comes first."""

    models: list[TrainedModel]
    turned: Float[Tensor, "_ C H W"]
    angles: list[float]
    samples: int


class Reader:
    """Reads requests for a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        shapes = [trained.shape for trained in service.models.values()]
        images = _SLACK * service.limits.images
        self._most = {
            b"{": _SPARE,
            b"[": images * max(sum(math.prod(shape[:n]) for n in range(len(shape))) for shape in shapes) + _SPARE,
            b",": images * max(math.prod(shape) for shape in shapes) + service.limits.angles + _SPARE,
        }

    async def prediction(self, request: Request) -> Prediction:
        """From JSON, or from a form with files."""
        if _media_type(request) == "multipart/form-data":
            return await self._form(request)
        return await self._read(request, schemas.PredictRequest, self._prediction)

    async def trajectory(self, request: Request) -> Trajectory:
        """From JSON."""
        return await self._read(request, schemas.TrajectoryRequest, self._trajectory)

    async def sweep(self, request: Request) -> Sweep:
        """From JSON."""
        return await self._read(request, schemas.SweepRequest, self._sweep)

    async def _read(self, request: Request, schema: type[schemas.Parsed], convert: Callable[[schemas.Parsed], Asked]) -> Asked:
        media_type = _media_type(request)
        if media_type != "application/json":
            raise ApiError(
                415, "unsupported_media_type", f"send the content type application/json, not {media_type[:80] or 'none'}"
            )
        body = await request.body()
        self._check_size(body)
        if len(body) > _INLINE_BYTES:
            # In one go: a parsed body is many times larger than its bytes and must not wait for its turn.
            return await self._service.aside(lambda: convert(parse(body, schema)))
        asked = parse(body, schema)
        return await self._service.aside(partial(convert, asked)) if asked.has_files else convert(asked)

    def _count(self, asked: schemas.Parsable, name: str) -> int:
        """A number that was asked for, within its limit; a default gives way to a smaller limit."""
        value: int = getattr(asked, name)
        if name in asked.model_fields_set:
            self._service.check_limit(name, value)
        return min(value, getattr(self._service.limits, name))

    def _check_size(self, body: bytes) -> None:
        """Refuse what cannot be a request before it becomes Python objects, which are many times larger and slow to make."""
        for sign, most in self._most.items():
            found = body.count(sign)
            if found > most:
                what = f"{found:,} {sign.decode()!r}, but no request that this server takes has more than {most:,}"
                raise ApiError(422, "invalid", f"the body holds {what}: send fewer or smaller arrays")

    def _prediction(self, asked: schemas.PredictRequest) -> Prediction:
        service = self._service
        trained = service.model(asked.model)
        samples = self._count(asked, "samples")
        given = [values for values in (asked.inputs, asked.images) if values is not None]
        if len(given) != 1 or not given[0]:
            raise InputError("give at least one input: either inputs (arrays) or images (files in base64), not both")
        service.check_limit("images", len(given[0]))
        if asked.inputs is not None:
            return Prediction(trained, array_batch(asked.inputs, trained), samples)
        files = [from_base64(text, service.limits) for text in given[0]]
        return Prediction(trained, image_batch(files, trained, service.limits), samples)

    def _trajectory(self, asked: schemas.TrajectoryRequest) -> Trajectory:
        service = self._service
        trained = service.model(asked.model)
        explore.check_latent_time(trained)
        explore.check_change(trained, asked.change)
        points, samples = self._count(asked, "points"), self._count(asked, "samples")
        return Trajectory(trained, one_batch(asked, trained, service.limits), asked.change, points, samples)

    def _sweep(self, asked: schemas.SweepRequest) -> Sweep:
        service = self._service
        service.check_limit("models", len(asked.models))
        if "angles" in asked.model_fields_set:
            service.check_limit("angles", len(asked.angles))
        angles, samples = asked.angles[: service.limits.angles], self._count(asked, "samples")
        chosen = [service.model(name) for name in asked.models]
        for trained in chosen:
            explore.check_sweep(trained, chosen[0])
        raw = one_batch(asked, chosen[0], service.limits).raw
        return Sweep(chosen, explore.turned(raw, angles), angles, samples)

    async def _form(self, request: Request) -> Prediction:
        limits = self._service.limits
        try:
            form = await request.form(max_files=limits.images, max_fields=len(_FORM_FIELDS), max_part_size=4096)
        except (MultiPartException, HTTPException) as error:
            reason = error.message if isinstance(error, MultiPartException) else error.detail
            raise ApiError(400, "bad_form", f"the form cannot be read: {reason}") from None
        try:
            trained, samples = self._form_options(form)
            files = [await part.read() for part in form.getlist("file") if isinstance(part, UploadFile)]
        finally:
            await form.close()
        if not files:
            raise InputError("a form needs at least one part 'file' with a file name: curl -F file=@digit.png")
        return Prediction(trained, await self._service.aside(partial(image_batch, files, trained, limits)), samples)

    def _form_options(self, form: FormData) -> tuple[TrainedModel, int]:
        strange = sorted(set(form) - set(_FORM_FIELDS))
        if strange:
            raise InputError(f"unknown field {strange[0][:80]!r}; a form has {', '.join(_FORM_FIELDS)}")
        name, count = form.get("model"), form.get("samples", "10")
        if isinstance(name, UploadFile) or isinstance(count, UploadFile):
            raise InputError("model and samples are texts of a form, not files")
        if not (count.isascii() and count.isdecimal() and len(count) < 8 and int(count) > 0):
            raise InputError(f"samples must be a whole number of at least 1, not {count[:80]!r}")
        self._service.check_limit("samples", int(count))
        return self._service.model(name), int(count)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
