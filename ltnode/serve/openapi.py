"""The description of the interface: bodies that the application parses itself, and every error that it may answer."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from ltnode.serve import schemas
from ltnode.serve.samples import samples
from ltnode.serve.service import Service

_REF = "#/components/schemas/{model}"
_WORDS = {
    400: "No JSON, or no readable form.",
    401: "The token is missing or wrong.",
    404: "No such model or sample.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "Neither JSON nor a form.",
    422: "Does not fit the model, or asks for more than the limits allow.",
    500: "A mistake of the server; its log has the details.",
    503: "Too many requests wait, or the server is shutting down: try again after the seconds of Retry-After.",
    504: "Took longer than a request may.",
}
_BODIES = (schemas.PredictRequest, schemas.TrajectoryRequest, schemas.SweepRequest)
_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Image files."},
        "model": {"type": "string"},
        "samples": {"type": "integer", "minimum": 1},
    },
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of a path: these errors and those that every path may answer."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": schemas.ErrorResponse, "description": _WORDS[status]} for status in sorted({401, 500, *statuses})
    }
    if 503 in found:
        found[503]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return found


def work_errors() -> dict[int | str, dict[str, Any]]:
    """Errors of a path that asks a model."""
    return errors(400, 404, 408, 413, 415, 422, 503, 504)


def png_or_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A picture, or these errors."""
    return {200: {"description": "A PNG file.", "content": {"image/png": {}}}, **errors(*statuses)}


def request_body(schema: str, form: bool = False) -> dict[str, Any]:
    """The body of a path, by the name of its schema; a form with files too if wanted."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": _REF.format(model=schema)}}}
    if form:
        content["multipart/form-data"] = {"schema": copy.deepcopy(_FORM)}
    return {"requestBody": {"required": True, "content": content}}


def complete(app: FastAPI, service: Service, with_token: bool) -> None:
    """Add the bodies, the names and limits of this very server, and the token where one is wanted, to the description."""
    described = app.openapi

    def full() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        spec: dict[str, Any] = described()
        _, definitions = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_REF)
        components = spec.setdefault("components", {})
        components.setdefault("schemas", {}).update(definitions["$defs"])
        _name_and_limit(spec, service)
        if with_token:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path, operations in spec["paths"].items():
                if path.startswith("/api/") and not path.startswith("/api/samples"):
                    for operation in operations.values():
                        operation["security"] = [{"token": []}]
        return spec

    app.openapi = full  # type: ignore[method-assign]


def _name_and_limit(spec: dict[str, Any], service: Service) -> None:
    """Which models and samples there are, and how much a request may ask for."""
    limits = service.limits
    choices = {"model": list(service.models), "models": list(service.models), "sample": list(samples()), "name": list(samples())}
    most = {
        "samples": ("maximum", limits.samples),
        "points": ("maximum", limits.points),
        "inputs": ("maxItems", limits.images),
        "images": ("maxItems", limits.images),
        "angles": ("maxItems", limits.angles),
        "models": ("maxItems", limits.models),
        "file": ("maxItems", limits.images),
    }

    def narrow(name: str, schema: dict[str, Any]) -> None:
        for part in schema.get("anyOf", [schema]):
            if isinstance(schema.get("default"), int) and name in most:
                schema["default"] = min(schema["default"], most[name][1])
            if name in choices and part.get("type") in ("string", "array"):
                part.get("items", part)["enum"] = choices[name]
            if name in most and part.get("type") in ("integer", "array"):
                key, value = most[name]
                part[key] = value

    bodies = [spec["components"]["schemas"][body.__name__] for body in _BODIES]
    for schema in [*bodies, spec["paths"]["/api/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]]:
        for name, part in schema["properties"].items():
            narrow(name, part)
    for operations in spec["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                narrow(parameter["name"], parameter["schema"])
