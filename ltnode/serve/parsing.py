"""From the body of an HTTP request to a checked request object: media type, size, JSON or form, schema, limits.

FastAPI would parse a declared body with `json.loads` on the event loop before any check of ours, and it cannot take JSON and
a form at one path. We therefore read the body here, and FastAPI only describes it (`ltnode.serve.openapi`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from ltnode.errors import InputError, unknown_name
from ltnode.serve.failures import ApiError, validation_reason
from ltnode.serve.limits import Limits
from ltnode.serve.requests import AnyRequest, PredictRequest, check_limits, json_kind

_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are parsed in the event loop: handing them to a thread would take longer."""
_SLACK = 4
"""Requests that are this many times too large are still parsed, so that the answer can name the limit."""
_OTHER_SIGNS = 100
"""Brackets and commas of a body that do not belong to an array of numbers."""
_FORM_FIELDS = ("file", "model", "samples")
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class RequestParser:
    """Parses the bodies of requests; the input shapes of the models bound the size of a sensible body."""

    def __init__(self, limits: Limits, shapes: Sequence[tuple[int, ...]], run_in_thread: RunInThread) -> None:
        self._limits, self._run_in_thread = limits, run_in_thread
        images = _SLACK * limits.images
        self._most_signs = {
            b"{": images + _OTHER_SIGNS,  # one per row of a table
            b"[": images * max(sum(math.prod(shape[:n]) for n in range(len(shape))) for shape in shapes) + _OTHER_SIGNS,
            b",": images * max(math.prod(shape) for shape in shapes) + limits.angles + _OTHER_SIGNS,
        }

    async def parse(self, http: Request, schema: type[AnyRequest]) -> AnyRequest:
        """Parse a JSON body; an ApiError of status 400, 415 or 422 or an InputError gives the reason for refusing it."""
        media_type = _media_type(http)
        if media_type != "application/json":
            reason = f"the content type must be application/json, not {media_type[:80] or 'empty'}"
            raise ApiError(415, "unsupported_media_type", reason)
        body = await http.body()
        self._check_signs(body)
        if len(body) > _INLINE_BYTES:
            request: AnyRequest = await self._run_in_thread(lambda: parse_json(body, schema))
        else:
            request = parse_json(body, schema)
        return check_limits(request, self._limits)

    async def parse_json_or_form(self, http: Request) -> PredictRequest:
        """Parse a JSON body, or a form with image files."""
        if _media_type(http) != "multipart/form-data":
            return await self.parse(http, PredictRequest)
        try:
            form = await http.form(max_files=self._limits.images, max_fields=len(_FORM_FIELDS), max_part_size=4096)
        except (MultiPartException, HTTPException) as error:
            reason = error.message if isinstance(error, MultiPartException) else error.detail
            raise ApiError(400, "bad_form", f"the form cannot be read: {reason}") from None
        try:
            return check_limits(_validate(await _form_values(form), PredictRequest), self._limits)
        finally:
            await form.close()

    def _check_signs(self, body: bytes) -> None:
        """Refuse a body with too many brackets or commas before it becomes Python objects, which are many times larger."""
        for sign, most in self._most_signs.items():
            count = body.count(sign)
            if count > most:
                reason = f"the body must have at most {most:,} {sign.decode()!r}, not {count:,}: send fewer or smaller arrays"
                raise ApiError(422, "invalid", reason)


def parse_json(body: bytes, schema: type[AnyRequest]) -> AnyRequest:
    """Parse JSON, in which NaN and infinity are errors, and check it against a schema."""
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="none")
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_json", f"the body is not JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(422, "invalid", f"the body must be a JSON object, not {json_kind(value)}")
    # pydantic would report each of a hundred thousand unknown keys.
    for key in value:
        if key not in schema.model_fields:
            raise ApiError(422, "invalid", unknown_name("key", key[:80], schema.model_fields))
    return _validate(value, schema)


def _validate(values: dict[str, Any], schema: type[AnyRequest]) -> AnyRequest:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise ApiError(422, "invalid", validation_reason(errors)) from None


async def _form_values(form: FormData) -> dict[str, Any]:
    """The fields of a form under the names of `PredictRequest`."""
    unknown = sorted(set(form) - set(_FORM_FIELDS))
    if unknown:
        raise InputError(unknown_name("field", unknown[0][:80], _FORM_FIELDS))
    files = [await part.read() for part in form.getlist("file") if isinstance(part, UploadFile)]
    if not files:
        raise InputError("a form needs at least one part 'file' with a file name: curl -F file=@digit.png")
    values: dict[str, Any] = {"images": files, **{name: form[name] for name in ("model", "samples") if name in form}}
    samples = values.get("samples")
    if isinstance(samples, str) and samples.isascii() and samples.isdecimal() and len(samples) < 8:
        values["samples"] = int(samples)
    return values


def _media_type(http: Request) -> str:
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()
