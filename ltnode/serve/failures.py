"""Every failure as one JSON shape: ``{"error": {"code": ..., "reason": ...}}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ltnode.errors import LTNodeError

_log = logging.getLogger("ltnode.serve")
_LONGEST_REASON = 500
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


class ApiError(Exception):
    """An answer other than success: ``code`` is a word for programs, ``reason`` a sentence for people."""

    def __init__(self, status: int, code: str, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.headers = status, code, reason, dict(headers or {})

    def response(self) -> JSONResponse:
        """The HTTP response."""
        # A reason may quote the client: we keep it short and replace lone surrogates, which UTF-8 cannot encode.
        reason = self.reason.encode("utf-8", "replace").decode("utf-8")
        reason = reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 4] + " ..."
        return JSONResponse({"error": {"code": self.code, "reason": reason}}, self.status, self.headers)


def stopping() -> ApiError:
    """The answer to a request that arrives while the server shuts down."""
    return ApiError(503, "stopping", "the server is shutting down", {"Retry-After": "5"})


def as_api_error(error: BaseException) -> ApiError:
    """Convert an exception to the answer for the client; the details of an unexpected one go to the log only."""
    match error:
        case ApiError():
            return error
        case TimeoutError():
            return ApiError(504, "timeout", "the request took too long: ask for less, or try again when the server is less busy")
        case LTNodeError():
            return ApiError(422, "invalid", str(error))
        case HTTPException():
            return ApiError(error.status_code, _CODES.get(error.status_code, "refused"), str(error.detail), error.headers)
        case ClientDisconnect():  # Nobody will read this answer, but it must not be logged as a fault of the server.
            return ApiError(400, "gone", "the client disconnected before its request had arrived")
        case RequestValidationError():
            return ApiError(422, "invalid", validation_reason(error.errors()))
        case ValidationError() if {entry["type"] for entry in error.errors()} == {"finite_number"}:
            return ApiError(422, "invalid", "the prediction is not finite: the input is too far from the training data")
        case _:
            _log.error("unexpected %s", type(error).__name__, exc_info=error)
            return ApiError(500, "internal", "the server failed; its log has the details")


def validation_reason(errors: Sequence[Any]) -> str:
    """Describe the first error that pydantic reports, with the place of the value."""
    first = errors[0]
    parts = [part for part in first["loc"] if part not in ("body", "query")]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def install(app: FastAPI) -> None:
    """Answer in this shape wherever FastAPI or Starlette would use a different one."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        failure = as_api_error(error)
        if failure.code == "not_found" and failure.reason == "Not Found":
            failure.reason = "there is nothing at this path; /openapi.json lists all paths"
        if failure.status == 405:
            failure.reason = f"this path does not take {request.method}; it takes {failure.headers.get('Allow', 'others')}"
        return failure.response()

    # FastAPI has no handlers for other exceptions; they reach the guard, which answers in the same shape.
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)
