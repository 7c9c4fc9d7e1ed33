"""Schemathesis tests the API against its description: no request gives a 5xx, and every answer conforms to the description."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ltnode.serve import Limits, create_app
from ltnode.serve.requests import OneInputRequest, PredictRequest
from serve.serving import classifier, line

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
OPERATIONS = [
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/api/models"),
    ("GET", "/api/samples/{name}.png"),
    ("POST", "/api/predict"),
    ("POST", "/api/trajectory"),
    ("POST", "/api/effect"),
    ("POST", "/api/sweep"),
    ("GET", "/api/curve"),
]


@pytest.fixture(scope="module")
def described() -> Any:
    """The schema of a running application with a classifier and a regression model."""
    app = create_app([classifier("lt"), line()], Limits(samples=5, points=20, angles=5), hosts=("testserver",))
    app.state.service.start()

    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        # Schemathesis would start and stop the application around every request.
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    yield schemathesis.openapi.from_asgi("/openapi.json", without_lifespan)
    app.state.service.stop()


def test_every_path_is_described(described: Any):
    """A new path must be added to the list, so that it is tested."""
    found = {(operation.ok().method.upper(), operation.ok().path) for operation in described.get_all_operations()}
    assert found == set(OPERATIONS)


SETTINGS = hypothesis.settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],  # shrinking is not needed: a failing request is short
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.filterwarnings("ignore")
def test_answers_conform_to_the_description(described: Any, method: str, path: str):
    @SETTINGS
    @hypothesis.given(case=described[path][method].as_strategy())
    def conforms(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    conforms()


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/api/predict", {"model": "line", "inputs": [[0.5], [-1]]}),
        ("/api/trajectory", {"model": "lt", "sample": "digit-3"}),
        ("/api/trajectory", {"model": "line", "input": [0.5], "change": {}}),
        ("/api/sweep", {"models": ["lt"], "sample": "digit-3"}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_options_the_description_allows_are_answered(described: Any, path: str, given: dict[str, Any]):
    """With a valid input, all options that the description allows give a 200 that conforms to it."""
    options = described[path]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)

    @SETTINGS
    @hypothesis.given(case=options)
    def conforms(case: Any) -> None:
        hypothesis.assume(case.media_type == "application/json" and isinstance(case.body, dict))
        forms = {*PredictRequest.forms, *OneInputRequest.forms}
        others = {key: value for key, value in case.body.items() if key not in forms}
        case.body = {**others, **given}
        assert case.call_and_validate(checks=CHECKS[:-1]).status_code == 200

    conforms()
