"""Limits, token, headers and metrics: requests beyond them are refused with a reason, and all others pass."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ltnode.serve import Limits, create_app
from ltnode.serve.guard import SECURITY_HEADERS
from ltnode.serve.metrics import Metrics
from ltnode.trained import TrainedModel
from serve.serving import images, send_all

TINY = Limits(images=2, samples=4, points=3, angles=2, models=1, body_bytes=40_000, pixels=900, held_bytes=60_000)
IMAGE = images(1)[0].mul(255).round().int().tolist()


@pytest.fixture(scope="module")
def tiny(trained: dict[str, TrainedModel]) -> Any:
    app = create_app(list(trained.values()), TINY)
    app.state.service.start()
    yield app
    app.state.service.stop()


def one(app: Any, method: str, path: str, **arguments: Any) -> httpx.Response:
    async def request(client: httpx.AsyncClient) -> httpx.Response:
        return await client.request(method, path, **arguments)

    return send_all(app, [request])[0]


def picture(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("path", "allowed", "refused", "words"),
    [
        ("predict", {"inputs": [IMAGE] * 2}, {"inputs": [IMAGE] * 3}, "3 images are too many; this server allows at most 2"),
        ("predict", {"inputs": [IMAGE], "samples": 4}, {"inputs": [IMAGE], "samples": 5}, "5 samples"),
        ("trajectory", {"input": IMAGE, "points": 3, "samples": 4}, {"input": IMAGE, "points": 4, "samples": 4}, "4 points"),
        ("trajectory", {"input": IMAGE, "points": 3, "samples": 4}, {"input": IMAGE, "points": 3, "samples": 5}, "5 samples"),
        (
            "predict",
            {"images": [base64.b64encode(picture(30, 30)).decode()], "samples": 1},
            {"images": [base64.b64encode(picture(30, 31)).decode()], "samples": 1},
            "at most 900",
        ),
    ],
)
def test_each_limit_accepts_its_value_and_refuses_one_more(
    tiny: Any, path: str, allowed: dict[str, Any], refused: dict[str, Any], words: str
):
    samples = {} if "samples" in allowed else {"samples": 4}
    assert one(tiny, "POST", f"/api/{path}", json={"model": "lt", **samples, **allowed}).status_code == 200
    answer = one(tiny, "POST", f"/api/{path}", json={"model": "lt", **samples, **refused})
    assert answer.status_code == 422 and words in answer.json()["error"]["reason"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"angles": [0, 1, 2]}, "3 angles"), ({"models": ["lt", "node"]}, "2 models"), ({"samples": 5}, "5 samples")],
)
def test_limits_of_a_sweep(tiny: Any, change: dict[str, Any], words: str):
    body = {"models": ["lt"], "input": IMAGE, "angles": [0, 10], "samples": 4}
    assert one(tiny, "POST", "/api/sweep", json=body).status_code == 200
    answer = one(tiny, "POST", "/api/sweep", json={**body, **change})
    assert answer.status_code == 422 and words in answer.json()["error"]["reason"]


def test_limits_of_a_curve(tiny: Any):
    query = {"model": "line", "points": 3, "samples": 4}
    assert one(tiny, "GET", "/api/curve", params=query).status_code == 200
    assert one(tiny, "GET", "/api/curve", params={**query, "points": 4}).status_code == 422
    assert one(tiny, "GET", "/api/curve", params={**query, "samples": 5}).status_code == 422


def test_a_body_is_refused_by_its_declared_length_and_while_it_arrives(tiny: Any):
    """A declared length is refused before a byte is read, and a stream of 10,000-byte chunks after the fifth of a thousand."""
    declared = one(tiny, "POST", "/api/predict", content=b" " * 40_001, headers={"content-type": "application/json"})
    assert declared.status_code == 413 and "40,000 bytes" in declared.json()["error"]["reason"]
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 10_000

    streamed = one(tiny, "POST", "/api/predict", content=endless(), headers={"content-type": "application/json"})
    assert streamed.status_code == 413
    assert sent <= 6


def test_a_body_with_too_many_brackets_is_refused_before_it_is_parsed(tiny: Any, monkeypatch: pytest.MonkeyPatch):
    """Parsing creates objects that are many times larger than the body; counting brackets and commas creates none."""
    monkeypatch.setattr("ltnode.serve.parsing.parse_json", lambda *_: pytest.fail("it was parsed"))
    for body in (b"[" * 5000, b"[" + b"1," * 15_000, b"{" * 500):
        answer = one(tiny, "POST", "/api/predict", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422 and "send fewer or smaller arrays" in answer.json()["error"]["reason"]


def test_all_bodies_together_are_bounded(tiny: Any):
    """Three slow bodies of 30,000 bytes exceed the limit of 60,000 for all bodies: at least one is told to try again."""

    def slow() -> Any:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 3000
                await asyncio.sleep(0.01)

        async def request(client: httpx.AsyncClient) -> httpx.Response:
            return await client.post("/api/predict", content=parts(), headers={"content-type": "application/json"})

        return request

    codes = [answer.status_code for answer in send_all(tiny, [slow() for _ in range(3)])]
    assert 503 in codes and set(codes) <= {400, 503}  # a body of spaces is not JSON
    assert one(tiny, "POST", "/api/predict", json={"model": "lt", "inputs": [IMAGE], "samples": 1}).status_code == 200


def sent_by(app: Any, messages: list[dict[str, Any]], then: float = 30.0) -> list[dict[str, Any]]:
    """Messages of an application to a client that sends these parts of a body and then waits."""

    async def run() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        coming = iter(messages)

        async def receive() -> dict[str, Any]:
            for message in coming:
                return message
            await asyncio.sleep(then)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/api/predict", "raw_path": b"/api/predict", "root_path": ""}
        scope |= {"headers": [(b"content-type", b"application/json")], "query_string": b"", "http_version": "1.1"}
        await app({**scope, "scheme": "http", "server": ("test", 80)}, receive, send)
        return sent

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_a_body_that_does_not_arrive_is_answered_408(trained: dict[str, TrainedModel]):
    app = create_app([trained["lt"]], Limits(seconds=2))
    sent = sent_by(app, [{"type": "http.request", "body": b"{", "more_body": True}])
    assert sent[0]["status"] == 408


def test_a_client_that_disconnects_is_not_logged_as_an_error(trained: dict[str, TrainedModel], caplog: Any):
    app = create_app([trained["lt"]])
    with caplog.at_level(logging.WARNING, logger="ltnode.serve"):
        sent_by(app, [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    assert caplog.text == ""


def test_the_token_protects_the_api_and_nothing_else(trained: dict[str, TrainedModel]):
    app = create_app([trained["lt"]], token="s3cret")
    right = {"authorization": "Bearer s3cret"}
    assert one(app, "GET", "/api/models", headers=right).status_code == 200
    for wrong in (
        {},
        {"authorization": "Bearer s3cre"},
        {"authorization": "Basic s3cret"},
        {"authorization": "Bearer \xfe".encode("latin-1")},
    ):
        answer = one(app, "GET", "/api/models", headers=wrong)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert "s3cret" not in answer.text
    for path in ("/healthz", "/metrics", "/openapi.json", "/api/samples/digit-3.png"):
        assert one(app, "GET", path).status_code == 200
    assert one(app, "GET", "/openapi.json").json()["paths"]["/api/predict"]["post"]["security"] == [{"token": []}]
    assert one(app, "GET", "/api/nothing").status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/", "/api/models", "/nowhere", "/metrics"])
def test_every_answer_has_security_headers(tiny: Any, path: str):
    headers = one(tiny, "GET", path).headers
    for name, value in SECURITY_HEADERS.items():
        assert headers[name] == value
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nowhere", 404, "nothing at this path"),
        ("GET", "/static/../app.py", 404, ""),
        ("GET", "/static/%2e%2e/app.py", 404, ""),
        ("GET", "/static/nothing.js", 404, ""),
        ("GET", "/docs", 404, ""),
        ("GET", "/api/samples/..%2f..%2fapp.png", 404, ""),
        ("GET", "/api/samples/nothing.png", 404, "no sample"),
        ("DELETE", "/api/predict", 405, "it takes POST"),
        ("GET", "/api/predict", 405, "it takes POST"),
        ("POST", "/api/models", 405, "it takes GET"),
        ("POST", "/static/explorer.js", 405, ""),
        ("GET", "/api/curve?points=many&model=line", 422, "points"),
        ("POST", "/api/predict", 415, "application/json"),
    ],
)
def test_wrong_paths_and_methods_are_answered_in_json(tiny: Any, method: str, path: str, status: int, words: str):
    answer = one(tiny, method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "reason"} and words in error["reason"]
    if status == 405:
        assert answer.headers["allow"]


def test_no_traceback_reaches_a_client(trained: dict[str, TrainedModel], monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """An unexpected error in the worker or in a handler gives a 500 without details, which are in the log."""
    app = create_app([trained["lt"]])
    app.state.service.start()

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    with caplog.at_level(logging.ERROR, logger="ltnode.serve"):
        monkeypatch.setattr("ltnode.serve.service.predict_together", broken)
        in_worker = one(app, "POST", "/api/predict", json={"inputs": [IMAGE]})
        monkeypatch.setattr("ltnode.serve.parsing.parse_json", broken)
        in_handler = one(app, "POST", "/api/predict", json={"inputs": [IMAGE]})
    app.state.service.stop()
    for answer in (in_worker, in_handler):
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
        assert "secret" not in answer.text and "Traceback" not in answer.text
    assert caplog.text.count("secret detail") >= 2


def test_metrics_count_requests_by_route_and_status(trained: dict[str, TrainedModel]):
    app = create_app([trained["lt"]])
    app.state.service.start()
    for _ in range(3):
        one(app, "POST", "/api/predict", json={"inputs": [IMAGE]})
    for n in range(20):
        one(app, "GET", f"/made/up/{n}")
    one(app, "POST", "/api/predict", json={})
    text = one(app, "GET", "/metrics").text
    app.state.service.stop()
    assert 'ltnode_requests_total{method="POST",path="/api/predict",status="200"} 3' in text
    assert 'ltnode_requests_total{method="POST",path="/api/predict",status="422"} 1' in text
    assert 'ltnode_requests_total{method="GET",path="other",status="404"} 20' in text
    assert "made" not in text
    assert 'ltnode_request_seconds_count{path="/api/predict"} 4' in text
    assert 'ltnode_batch_inputs_sum{model="lt"} 3' in text
    assert "ltnode_queue_length 0" in text
    memory = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
    assert memory and 10**7 < float(memory[1]) < 10**11


def test_a_histogram_is_cumulative_and_a_label_is_escaped():
    """A bucket includes its bound, +Inf counts every value, and quotes and backslashes are escaped."""
    metrics = Metrics(lambda: 0)
    for value in (1, 2, 4, 500):
        metrics.batches.labels('a"\\b').observe(value)
    found = [line for line in metrics.text().splitlines() if line.startswith("ltnode_batch_inputs_") and "created" not in line]
    counts = {"1.0": 1, "2.0": 2, "4.0": 3, "8.0": 3, "16.0": 3, "32.0": 3, "64.0": 3, "128.0": 3, "+Inf": 4}
    label = 'model="a\\"\\\\b"'
    assert found == [
        *(f'ltnode_batch_inputs_bucket{{le="{bound}",{label}}} {count}.0' for bound, count in counts.items()),
        f"ltnode_batch_inputs_count{{{label}}} 4.0",
        f"ltnode_batch_inputs_sum{{{label}}} 507.0",
    ]


def test_two_applications_in_one_process_count_separately(trained: dict[str, TrainedModel]):
    first, second = create_app([trained["lt"]]), create_app([trained["lt"]])
    one(first, "GET", "/healthz")
    assert 'path="/healthz"' in first.state.service.metrics.text()
    assert 'path="/healthz"' not in second.state.service.metrics.text()
