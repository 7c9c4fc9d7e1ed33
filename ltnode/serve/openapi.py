"""The description at /openapi.json: what FastAPI cannot know about bodies, errors, and the limits of this server."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI

from ltnode.serve.answers import ErrorAnswer
from ltnode.serve.requests import LIMIT_OF_FIELD, ApiRequest
from ltnode.serve.samples import samples
from ltnode.serve.service import Service

_DESCRIPTIONS = {
    400: "The body is not JSON, or the form cannot be read.",
    401: "The token is missing or wrong.",
    403: "The request names another host, or a page of another origin sent it.",
    404: "There is no such model or sample.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is neither JSON nor a form.",
    422: "The request does not fit the model, or exceeds a limit.",
    500: "The server failed; its log has the details.",
    503: "Too many requests wait, or the server is shutting down: try again after the seconds of Retry-After.",
    504: "The request took too long.",
}
_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Image files."},
        "model": {"type": "string"},
        "samples": {"type": "integer", "minimum": 1},
    },
}
Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """Describe the errors that a path may answer in addition to 401 and 500."""
    responses: Responses = {
        status: {"model": ErrorAnswer, "description": _DESCRIPTIONS[status]} for status in sorted({401, 500, *statuses})
    }
    if 503 in responses:
        responses[503]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return responses


def request_body(schema: type[ApiRequest], form: bool = False) -> dict[str, Any]:
    """Describe a body that `ltnode.serve.parsing` reads: JSON of a schema, and a form with files if ``form`` is set."""
    content: dict[str, Any] = {
        "application/json": {"schema": schema.model_json_schema(ref_template="#/components/schemas/{model}")}
    }
    if form:
        content["multipart/form-data"] = {"schema": copy.deepcopy(_FORM)}
    return {"requestBody": {"required": True, "content": content}}


def add_limits(app: FastAPI, service: Service) -> None:
    """Add the names of the models and samples, and the limits of this server, to the description."""
    describe = app.openapi
    choices = {"model": list(service.models), "models": list(service.models), "sample": list(samples()), "name": list(samples())}
    most = {field: getattr(service.limits, name) for field, name in {**LIMIT_OF_FIELD, "file": "images"}.items()}

    def narrow(name: str, schema: dict[str, Any]) -> None:
        if isinstance(schema.get("default"), int) and name in most:
            schema["default"] = min(schema["default"], most[name])
        for part in schema.get("anyOf", [schema]):
            if name in choices and part.get("type") in ("string", "array"):
                part.get("items", part)["enum"] = choices[name]
            if name in most and part.get("type") in ("integer", "array"):
                part["maxItems" if part["type"] == "array" else "maximum"] = most[name]

    def describe_with_limits() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        spec = describe()
        for operation in (operation for operations in spec["paths"].values() for operation in operations.values()):
            for parameter in operation.get("parameters", ()):
                narrow(parameter["name"], parameter["schema"])
            for content in operation.get("requestBody", {}).get("content", {}).values():
                spec["components"]["schemas"].update(content["schema"].pop("$defs", {}))
                for name, part in content["schema"]["properties"].items():
                    narrow(name, part)
        return spec

    app.openapi = describe_with_limits  # type: ignore[method-assign]
