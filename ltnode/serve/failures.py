"""Everything that can go wrong as one JSON shape: ``{"error": {"code": ..., "reason": ...}}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ltnode.errors import LTNodeError
from ltnode.serve.batching import QueueFullError, StoppedError, TooLateError

log = logging.getLogger("ltnode.serve")

_LONGEST_REASON = 500
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: HTTP status.
        code: One word for programs.
        reason: One sentence for people: what was given, what is allowed.
        headers: Further headers.
    """

    def __init__(self, status: int, code: str, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.headers = status, code, reason, dict(headers or {})

    def response(self) -> JSONResponse:
        """As the server sends it."""
        # What a client sent may be quoted in a reason: keep it short, and free of lone surrogates, which are no UTF-8.
        reason = self.reason.encode("utf-8", "replace").decode("utf-8")
        reason = reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 4] + " ..."
        return JSONResponse({"error": {"code": self.code, "reason": reason}}, self.status, self.headers)


def as_api_error(error: BaseException) -> ApiError:
    """The answer to an exception; what nobody foresaw is logged and told without its details."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return ApiError(503, "queue_full", str(error), {"Retry-After": "1"})
        case StoppedError():
            return ApiError(503, "stopping", str(error), {"Retry-After": "5"})
        case TooLateError() | TimeoutError():
            reason = str(error) or "the request took longer than it may: ask for less, or try again when the server is less busy"
            return ApiError(504, "timeout", reason)
        case LTNodeError():
            return ApiError(422, "invalid", str(error))
        case HTTPException():
            code = _CODES.get(error.status_code, "refused")
            return ApiError(error.status_code, code, str(error.detail), error.headers)
        case ClientDisconnect():  # nobody is left to read it; it must not look like a mistake of the server
            return ApiError(400, "gone", "the client left before its request had arrived")
        case RequestValidationError():
            return ApiError(422, "invalid", validation_reason(error.errors()))
        case _:
            log.error("unforeseen %s", type(error).__name__, exc_info=error)
            return ApiError(500, "internal", "the server made a mistake; its log has the details")


def validation_reason(errors: object) -> str:
    """The first finding of pydantic in words."""
    first = errors[0] if isinstance(errors, list | tuple) and errors else {}
    place = ".".join(str(part) for part in first.get("loc", ()) if part not in ("body", "query"))
    return f"{place}: {first.get('msg', 'not as expected')}" if place else str(first.get("msg", "not as expected"))


def install(app: FastAPI) -> None:
    """Answer in this shape wherever FastAPI or Starlette would answer in their own."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        failure = as_api_error(error)
        if failure.status == 404 and failure.code == "not_found" and failure.reason == "Not Found":
            failure = ApiError(404, "not_found", "there is nothing at this path; /openapi.json lists what there is")
        if failure.status == 405:
            allowed = failure.headers.get("Allow", "others")
            failure = ApiError(
                405, failure.code, f"this path does not take {request.method}; it takes {allowed}", failure.headers
            )
        return failure.response()

    for kind in (ApiError, LTNodeError, HTTPException, RequestValidationError, TimeoutError):
        app.add_exception_handler(kind, answer)
