"""Attacks on a running server: hostile images, slow clients, expensive sweeps and foreign pages do not stop the others."""

from __future__ import annotations

import base64
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ltnode.errors import InputError
from ltnode.serve import Limits, create_app, decoders
from ltnode.serve.decoders import DecoderPool
from ltnode.serve.fair_queue import FairQueue
from ltnode.serve.quiet_log import QuietFilter
from ltnode.trained import TrainedModel
from serve.attack_files import picture, progressive_bomb
from serve.serving import images, send_all

SHAPE = (1, 28, 28)
PROGRAM = """
import torch
from ltnode.serve import Limits
from ltnode.serve.server import serve
from serve.serving import classifier

limits = Limits(header_seconds=1.5, stall_seconds=1.5, connections=48, client_connections=16, grace_seconds=2)
serve([classifier("lt")], limits, port=0, ready=lambda address: print(address, flush=True))
"""


@pytest.fixture
def pool() -> Iterator[DecoderPool]:
    running = DecoderPool(Limits(decode_seconds=0.4))
    running.start()
    yield running
    running.stop()


def test_a_decoding_bomb_ends_its_process_and_the_next_image_is_decoded(pool: DecoderPool):
    """Without the CPU limit, the 41 KB file takes over 5 s; the answer names the limit, and another process takes over."""
    bomb = pool.submit([progressive_bomb()], SHAPE, "attacker", 30)
    with pytest.raises(InputError, match="more than 0.4 s of processor time"):
        bomb.result(20)
    pixels, notes = pool.submit([picture(56, 56)], SHAPE, "attacker", 30).result(20)
    assert pixels.shape == (1, *SHAPE) and notes == ["resized 56x56 -> 28x28"]
    before = pool.pids()
    pool.submit([picture(28, 28)], SHAPE, "attacker", 30).result(20)
    assert set(before) <= set(pool.pids()), "a warm process is used again"


def test_a_client_with_many_bombs_leaves_a_process_for_the_others(pool: DecoderPool):
    """20 bombs wait in one process (0.4 s each); the small image of another client is decoded in the second at once."""
    pool.submit([picture(28, 28)], SHAPE, "warm", 30).result(20)
    bombs = [pool.submit([progressive_bomb()], SHAPE, "attacker", 30) for _ in range(20)]
    pool.submit([picture(28, 28)], SHAPE, "other", 30).result(20)
    assert sum(bomb.done() for bomb in bombs) < 10


def test_where_pipes_cannot_be_waited_for_a_timer_ends_a_bomb(monkeypatch: pytest.MonkeyPatch):
    """Windows has neither `poll` for pipes nor a limit of processor time: the same answers as elsewhere, by the wall clock."""
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(decoders, "_LIMITS_CPU", False)
    running = DecoderPool(Limits(decode_seconds=1.0))
    running.start()
    try:
        running.submit([picture(28, 28)], SHAPE, "warm", 30).result(20)
        began = time.monotonic()
        with pytest.raises(InputError, match="more than 1 s of processor time"):
            running.submit([progressive_bomb()], SHAPE, "attacker", 30).result(20)
        assert time.monotonic() - began < 10
        pixels, notes = running.submit([picture(56, 56)], SHAPE, "attacker", 30).result(20)
        assert pixels.shape == (1, *SHAPE) and notes == ["resized 56x56 -> 28x28"]
    finally:
        running.stop()


def test_stopping_ends_decoding_at_once():
    """`stop` returns although a process decodes for another 5 s; waiting requests are told."""
    running = DecoderPool(Limits(decode_seconds=20))
    running.start()
    futures = [running.submit([progressive_bomb()], SHAPE, "client", 30) for _ in range(3)]
    while not futures[0].running():
        time.sleep(0.01)
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < 3
    for future in futures:
        assert future.exception(5) is not None


def test_pixels_are_limited_per_request(trained: dict[str, TrainedModel]):
    """Each of three images is within the limit of one image, but not within that of a request."""
    app = create_app([trained["lt"]], Limits(pixels=1000, request_pixels=2500))
    app.state.service.start()
    files = [base64.b64encode(picture(30, 30)).decode()] * 3
    sent = send_all(app, [lambda client, n=n: client.post("/api/predict", json={"images": files[:n]}) for n in (2, 3)])
    app.state.service.stop()
    assert sent[0].status_code == 200
    assert sent[1].status_code == 422 and "2,500 pixels together" in sent[1].json()["error"]["reason"]


@pytest.mark.posix
def test_a_killed_decoding_process_is_replaced(pool: DecoderPool):
    pool.submit([picture(28, 28)], SHAPE, "one", 30).result(20)
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
    pixels, _ = pool.submit([picture(28, 28)], SHAPE, "one", 30).result(20)
    assert pixels.shape == (1, *SHAPE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with short deadlines in a process of its own, which may open 256 descriptors."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["tests", *sys.path])}
    command = ["bash", "-c", 'ulimit -n 256; exec "$0" -c "$1"', sys.executable, PROGRAM]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = threading.Timer(120, process.kill)
    watch.start()
    assert process.stdout is not None and process.stderr is not None
    found = process.stdout.readline().strip()
    yield found
    watch.cancel()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0 and time.monotonic() - began < 10
    assert len(process.stderr.read()) < 5000, "the log must stay short under pressure"


def connect(address: str, client: str = "127.0.0.2") -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(client, 0))


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_dribbled_headers_are_dropped_and_health_answers(address: str):
    """300 sockets for 256 descriptors: the limit of the client holds, and those that remain are closed at the deadline."""
    sockets = []
    for _ in range(300):
        sockets.append(connect(address))
        sockets[-1].sendall(b"GET / HTTP/1.1\r\nX-A: ")
    began = time.monotonic()
    for client in ("127.0.0.1", "127.0.0.2"):
        transport = httpx.HTTPTransport(local_address=client)
        with httpx.Client(transport=transport, timeout=5) as ask:
            assert ask.get(f"{address}/healthz").status_code == 200
    assert time.monotonic() - began < 3
    deadline = time.monotonic() + 10
    while not all(is_closed(one) for one in sockets):
        assert time.monotonic() < deadline, "some sockets are never dropped"
        for one in sockets:
            try:
                one.send(b"a")
            except OSError:
                continue
        time.sleep(0.2)
    for one in sockets:
        one.close()


def test_bodies_that_stall_are_given_up(address: str):
    """A body that stops one byte before its end is answered 408 after the longest pause."""
    with connect(address) as one:
        one.sendall(
            b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{}"
        )
        assert b" 408 " in one.recv(1000)


def test_a_client_that_holds_all_bytes_does_not_keep_others_out(trained: dict[str, TrainedModel]):
    """Bodies that almost fill the memory for bodies are given up, oldest first, when another client needs it."""
    import asyncio

    app = create_app([trained["lt"]], Limits(body_bytes=40_000, held_bytes=60_000))
    app.state.service.start()
    sent: list[int] = []

    async def slow() -> None:
        async def parts() -> Any:
            yield b'{"inputs": [' + b" " * 18_000
            await asyncio.sleep(3)
            yield b"[]]}"

        transport = httpx.ASGITransport(app, client=("127.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-type": "application/json"}
            sent.append((await client.post("/api/predict", content=parts(), headers=headers)).status_code)

    async def run() -> list[int]:
        attackers = [asyncio.create_task(slow()) for _ in range(3)]
        await asyncio.sleep(0.2)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            body = {"inputs": images(2).tolist()}
            normal = [(await client.post("/api/predict", json=body)).status_code for _ in range(3)]
        for task in attackers:
            task.cancel()
        return normal

    assert asyncio.run(run()) == [200] * 3
    app.state.service.stop()


def test_a_repeated_model_or_angle_of_a_sweep_counts_once(client: Any):
    body = {"models": ["lt"] * 8, "angles": [0, 15, 15, 0], "sample": "digit-3", "samples": 2}
    answer = client.post("/api/sweep", json=body).json()
    assert answer["angles"] == [0, 15] and [curve["model"] for curve in answer["curves"]] == ["lt"]
    assert len(answer["curves"][0]["probability"]) == 2 and answer["notes"] == []


def test_a_sweep_is_cut_to_its_time(trained: dict[str, TrainedModel]):
    """The first round is always answered; a note says how many angles are missing."""
    app = create_app([trained["lt"]], Limits(sweep_seconds=0.001))
    app.state.service.start()
    body = {"models": ["lt"], "angles": list(range(60)), "sample": "digit-3", "samples": 2}
    answer = send_all(app, [lambda client: client.post("/api/sweep", json=body)])[0].json()
    app.state.service.stop()
    assert answer["angles"] == list(range(15)) and len(answer["curves"][0]["labels"]) == 15
    assert "15 of 60 angles" in answer["notes"][0]


def test_clients_take_turns():
    """With 5 jobs of one client in the queue, that of another is second; a full queue drops the last job of the largest."""
    queue: FairQueue[int] = FairQueue(6)
    for job in range(5):
        assert queue.put("many", job) is None
    assert queue.put("few", 100) is None
    assert queue.put("few", 101) == 4, "the client with most jobs makes room"
    assert queue.put("many", 5) == 5, "which it cannot get back"
    order = [found[1] for _ in range(6) if (found := queue.pop()) is not None]
    assert order == [0, 100, 1, 101, 2, 3] and queue.pop() is None and len(queue) == 0


def test_a_large_request_is_divided_into_turns(trained: dict[str, TrainedModel]):
    """64 inputs x 100 samples are eleven batches of six inputs, between which others have their turn."""
    app = create_app([trained["lt"]])
    app.state.service.start()
    body = {"inputs": images(64).tolist(), "samples": 100}
    answer = send_all(app, [lambda client: client.post("/api/predict", json=body)])[0].json()
    text = app.state.service.metrics.text()
    app.state.service.stop()
    assert len(answer["predictions"]) == 64 and 'ltnode_batch_inputs_count{model="lt"} 11.0' in text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example:8000"}, 403),
        ({"host": "10.0.0.1"}, 403),
        ({"host": "localhost:8000"}, 200),
        ({"host": "127.0.0.1:9"}, 200),
        ({"host": "[::1]:9"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://localhost"}, 200),
    ],
)
def test_foreign_hosts_and_origins_are_refused(client: Any, headers: dict[str, str], status: int):
    files = {"file": ("digit.png", picture(28, 28), "image/png")}
    assert client.post("/api/predict", data={"model": "lt", "samples": "1"}, files=files, headers=headers).status_code == status
    if "host" in headers:
        assert client.get("/", headers=headers).status_code == status


def test_named_hosts_are_allowed_and_a_trusted_proxy_names_the_client(trained: dict[str, TrainedModel]):
    from ltnode.serve.clients import Clients

    app = create_app([trained["lt"]], hosts=("models.example",))
    given = {"host": "models.example", "origin": "https://models.example"}
    assert send_all(app, [lambda client: client.get("/healthz", headers=given)])[0].status_code == 200

    def client_of(clients: Clients, peer: str, forwarded: str) -> str:
        return clients.of_request({"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded.encode())]})

    assert client_of(Clients(), "127.0.0.1", "9.9.9.9") == "127.0.0.1"
    behind = Clients(["127.0.0.1", "10.0.0.0/8"])
    assert client_of(behind, "127.0.0.1", "8.8.8.8, 9.9.9.9, 10.1.1.1") == "9.9.9.9"
    assert client_of(behind, "127.0.0.1", "nonsense") == "127.0.0.1"
    assert client_of(behind, "2001:db8::1", "") == client_of(behind, "2001:db8::2", "") == "2001:db8::/64"


def test_a_repeated_log_line_is_counted_and_not_repeated():
    """A thousand equal messages within a minute are three lines; the next one says how many are missing."""
    import logging

    now = 0.0
    quiet = QuietFilter(lambda: now)

    def passes() -> logging.LogRecord | None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, "socket.accept() out of system resource", None, None)
        return record if quiet.filter(record) else None

    assert sum(passes() is not None for _ in range(1000)) == 3
    now = 61.0
    later = passes()
    assert later is not None and "997 such lines" in later.getMessage()
