"""Attacks below the API: what HTTP itself leaves open, and rows of tables that no spreadsheet would hold."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ltnode.serve import Limits, connections, create_app
from ltnode.serve.clients import Clients
from ltnode.serve.failures import ApiError
from ltnode.serve.metrics import Metrics
from ltnode.serve.model_workers import ModelWorkers
from ltnode.serve.server import bind
from serve.serving import CELLS, send_all, table_model


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    made = create_app([table_model()])
    made.state.service.start()
    yield made
    made.state.service.stop()


@pytest.fixture(scope="module")
def port(app: Any) -> Iterator[int]:
    """The application behind the protocol of the server, in a thread."""
    limits, clients = Limits(), Clients()
    http = connections.limited_protocol(connections.Connections(limits, clients, Metrics(lambda: 0)))
    config = uvicorn.Config(app, http=http, log_config=None, lifespan="off", ws="none")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield bound.getsockname()[1]
        server.should_exit = True
        thread.join(20)


def answers(port: int, request: bytes) -> bytes:
    """Everything that the server sends before it closes the connection, or within a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        received = b""
        try:
            link.sendall(request)
            while part := link.recv(65536):
                received += part
        except OSError:
            return received
        return received


def test_the_parser_of_headers_is_always_the_bounded_one() -> None:
    """A second copy of the module, imported where uvicorn would choose another parser: with that one, headers have no limit."""

    class Other(H11Protocol):
        """The protocol that uvicorn chooses where httptools is installed."""

    auto = types.ModuleType("uvicorn.protocols.http.auto")
    auto.AutoHTTPProtocol = Other  # type: ignore[attr-defined]
    before = sys.modules.get(auto.__name__)
    sys.modules[auto.__name__] = auto
    try:
        spec = importlib.util.spec_from_file_location("connections_again", Path(connections.__file__))
        assert spec is not None and spec.loader is not None
        again = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
    finally:
        del sys.modules[auto.__name__]
        if before is not None:
            sys.modules[auto.__name__] = before
    protocol = again.limited_protocol(None)
    assert issubclass(protocol, H11Protocol) and not issubclass(protocol, Other)


def test_a_header_without_end_is_refused(port: int) -> None:
    """A megabyte of header lines, of which 64 KiB are read."""
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    received = answers(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + 1000 * line)
    assert not received or received.startswith(b"HTTP/1.1 400")  # the connection may be reset before the answer is read


@pytest.mark.parametrize(
    "lengths",
    [b"Content-Length: 40\r\nTransfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 40", b"Content-Length: +5"],
)
def test_a_request_inside_another_one_is_not_answered(port: int, lengths: bytes) -> None:
    """A proxy and this server may disagree where the first request ends: the second must not be taken for one of its own."""
    head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + lengths
    received = answers(port, head + b"\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400") and received.count(b"HTTP/1.1 ") == 1 and b"ltnode_queue_length" not in received


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
def test_a_connection_stays_http(port: int, upgrade: bytes) -> None:
    """An upgrade is not granted, and the limits of requests apply."""
    received = answers(
        port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
    )
    assert received.startswith(b"HTTP/1.1 200") and b" 101 " not in received


def test_a_compressed_body_is_not_unpacked(app: Any) -> None:
    """Ten megabytes of spaces in ten kilobytes: the body is no JSON as it is, and nothing unpacks it."""
    import gzip

    body = gzip.compress(b" " * 10_000_000)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    sent = send_all(app, [lambda client: client.post("/api/predict", content=body, headers=headers)])
    assert sent[0].status_code == 400 and "not JSON" in sent[0].text


@pytest.mark.parametrize(
    "change",
    [
        {"sold": "0001-01-01T00:00:00+14:00"},
        {"sold": "9999-12-31T23:59:59-14:00"},
        {"sold": "99999-01-01"},
        {"size": "1e300"},
        {"size": "1" * 400},
        {"size": "nan and more"},
        {"size": True},
        {"city": "x" * 1000},
        {"sold": 7},
        {"size": "1_000"},
    ],
)
@pytest.mark.parametrize("path", ["/api/predict", "/api/effect", "/api/trajectory"])
def test_strange_cells_are_answered(app: Any, path: str, change: dict[str, Any]) -> None:
    """A prediction, or a refusal with a reason; never a failure of the server."""
    row = {**CELLS, **change}
    body = {"rows": [CELLS, row]} if path.endswith("predict") else {"row": row}
    body |= {"column": "size"} if path.endswith("effect") else {}
    sent = send_all(app, [lambda client: client.post(path, json=body)])[0]
    assert sent.status_code in (200, 422), sent.text
    assert "sold" in sent.text or "sold" not in change or sent.status_code == 200


def test_the_effect_of_dates_ends_with_the_last_year() -> None:
    """9999-12-31 often stands for never: the values beyond the range of training would be in the year 10000."""
    from ltnode.serve.tables import _label, _values
    from ltnode.tables import Column

    column = Column("until", "date", low=0.0, high=2_932_896.0, parts=("days",))
    shown = [_label(column, value) for value in _values(column, 5)]
    assert shown[-1] == "9999-12-31" and len(shown) == 5


def test_workers_that_keep_dying_are_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt meets dead processes: the answer is that of a busy server, and no exception of the pool."""

    class Dead(ProcessPoolExecutor):
        """Processes that have died before they are asked."""

        def submit(self, *work: Any) -> Any:
            raise BrokenProcessPool

    monkeypatch.setattr(ModelWorkers, "_started", lambda self: Dead(1))
    workers = ModelWorkers([], 2)
    with pytest.raises(ApiError) as refused:
        workers.predict("model", 1, [])
    assert refused.value.status == 503
