"""``ltnode serve`` as a separate process: its address, its warning, and a shutdown that finishes the accepted requests."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.errors import InputError
from ltnode.serve.server import address_of, bind, is_local
from serve.serving import images

pytestmark = pytest.mark.posix  # processes that are ended by signals

START_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved classifier with ten classes."""
    return ltnode.save(ltnode.build("lt-node", "mnist", seed=0, width=8), tmp_path_factory.mktemp("models") / "small")


@contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``ltnode serve`` on a free port; gives the process and its address."""
    command = [sys.executable, "-m", "ltnode.cli", "serve", *arguments, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    watch = threading.Timer(START_S, process.kill)
    watch.start()
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"Open (http://\S+)", line):
                yield process, found[1]
                return
        pytest.fail("the server did not start:\n" + "".join(lines))
    finally:
        watch.cancel()
        process.kill()
        process.wait()


def test_sigterm_finishes_the_accepted_requests(folder: Path):
    """SIGTERM during eight requests of 64 images: all are answered 200, no new request is accepted, and the status is 0."""
    body = {"inputs": images(64).mul(255).round().int().tolist(), "samples": 20}

    async def ask(process: subprocess.Popen[str], address: str) -> list[Any]:
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits(max_connections=20)) as client:
            assert (await client.get("/healthz")).json()["status"] == "ok"
            page = await client.get("/")
            assert page.status_code == 200 and "html" in page.headers["content-type"]
            requests = [asyncio.create_task(client.post("/api/predict", json=body)) for _ in range(8)]
            accepted = 0.0
            while accepted < 8:  # in the queue or in a batch
                text = (await client.get("/metrics")).text
                queued = float(re.findall(r"^ltnode_queue_length (\S+)", text, re.MULTILINE)[0])
                passed = re.findall(r'^ltnode_batch_inputs_count\{model="small"\} (\S+)', text, re.MULTILINE)
                accepted = queued + float(passed[0] if passed else 0)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*requests, return_exceptions=True)

    with server(str(folder)) as (process, address):
        answers = asyncio.run(ask(process, address))
        assert [getattr(answer, "status_code", answer) for answer in answers] == [200] * 8
        assert process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/healthz")


def test_an_interrupt_ends_cleanly_and_the_token_is_required(folder: Path):
    with server(str(folder), "--token", "abc") as (process, address):
        base, _, token = address.partition("/#token=")
        assert token == "abc"
        assert httpx.get(f"{base}/api/models").status_code == 401
        assert httpx.get(f"{base}/api/models", headers={"authorization": "Bearer abc"}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_public_host_without_a_token_gives_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch):
    said: dict[str, Any] = {}
    monkeypatch.setattr("ltnode.serve.server.serve", lambda *models, **options: said.update(options))
    runner = CliRunner()
    shown = runner.invoke(make_app(), ["serve", str(folder), "--host", "0.0.0.0"])
    assert shown.exit_code == 0 and "warning: anyone" in shown.output and "--token" in shown.output
    assert said["host"] == "0.0.0.0"
    for safe in (["--host", "0.0.0.0", "--token", "x"], []):
        assert "warning: anyone" not in runner.invoke(make_app(), ["serve", str(folder), *safe]).output
    assert said["host"] == "127.0.0.1"


def test_a_folder_of_run_folders_serves_them_all(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other files and folders are ignored; the models have the names of their folders and are sorted."""
    for name in ("b", "a"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "notes").mkdir()
    served: list[str] = []
    monkeypatch.setattr("ltnode.serve.server.serve", lambda models, *rest, **options: served.extend(m.name for m in models))
    assert CliRunner().invoke(make_app(), ["serve", str(tmp_path)]).exit_code == 0
    assert served == ["a", "b"]


def test_a_folder_without_a_model_is_an_error_of_one_line(tmp_path: Path):
    shown = CliRunner().invoke(make_app(), ["serve", str(tmp_path)])
    assert shown.exit_code == 2 and "error:" in shown.output and "Traceback" not in shown.output


def test_a_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    shown = CliRunner().invoke(make_app(), ["serve", str(folder)])
    assert shown.exit_code == 2 and "ltnode[serve]" in shown.output and "uvicorn" in shown.output


def test_a_port_that_is_in_use_or_invalid_is_an_error_with_a_remedy():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"port {port}.*--port"):
            bind("127.0.0.1", port)
    for port in (-1, 65536):
        with pytest.raises(InputError, match="65535"):
            bind("127.0.0.1", port)
    with pytest.raises(InputError, match="no.such.host.invalid"):
        bind("no.such.host.invalid", 0)


def test_wildcard_addresses_are_shown_as_addresses_that_open():
    with bind("0.0.0.0", 0) as everywhere:
        assert address_of(everywhere).startswith("http://127.0.0.1:")
    if socket.has_ipv6:
        try:
            with bind("::1", 0) as six:
                assert address_of(six).startswith("http://[::1]:")
        except InputError:
            pytest.skip("this machine has no IPv6 loopback")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("::", False),
        ("a.example", False),
    ],
)
def test_local_hosts(host: str, local: bool):
    assert is_local(host) is local


def test_connections_wait_from_the_moment_the_address_is_known():
    """`bind` listens, so that a client that connects before the server accepts is not refused."""
    with bind("127.0.0.1", 0) as bound:
        began = time.monotonic()
        with socket.create_connection(bound.getsockname(), timeout=5):
            assert time.monotonic() - began < 5


def test_workers_share_limits_and_metrics_and_are_replaced_when_they_die(folder: Path):
    """Two processes answer as one: equal predictions, one count of all requests, and a killed worker costs no request."""
    body = {"inputs": images(4).mul(255).round().int().tolist(), "samples": 5}
    with server(str(folder), "--workers", "2") as (process, address), httpx.Client(base_url=address, timeout=60) as client:
        first = client.post("/api/predict", json=body).json()["predictions"]
        expected = ltnode.trained.TrainedModel.open(folder, "cpu").rows(images(4), 5)
        for answer, row in zip(first, expected, strict=True):
            # Pixels are rounded to whole numbers on their way.
            assert answer["probs"] == pytest.approx(row.probs, abs=1e-2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if children.exists():
            workers = [int(pid) for pid in children.read_text().split() if "spawn_main" in _command(int(pid))]
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
        answers = [client.post("/api/predict", json=body) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert all(answer.json()["predictions"] == first for answer in answers)
        text = client.get("/metrics").text
        assert 'ltnode_requests_total{method="POST",path="/api/predict",status="200"} 7.0' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def test_connections_wait_while_the_server_is_busy(folder: Path):
    """A client whose connection finds no place in the kernel's queue tries again after one second; 400 find one at once."""
    with server(str(folder)) as (process, address), ExitStack() as connections:
        host, port = address.removeprefix("http://").split(":")
        assert httpx.get(f"{address}/healthz").status_code == 200
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(400):
            connections.enter_context(socket.create_connection((host, int(port)), timeout=10))
        assert time.monotonic() - began < 0.9
