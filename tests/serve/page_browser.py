"""A browser on the explorer page, with a real server on the loopback interface and the Chromium of the system."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str:
    """Path of Chromium; the test is skipped if it is not installed."""
    pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser found: looked for {', '.join(NAMES)}")


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application in a thread on a free port; gives its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    patience = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive() and time.monotonic() < patience, "the server did not start"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)


@dataclass
class Watched:
    """A page that records its errors and its requests.

    Attributes:
        page: Playwright's page.
        base: Address of the server.
        problems: Console errors and uncaught exceptions.
        hosts: Host and port of every request.
        expected: Parts of the console messages that a test provokes.
    """

    page: Any
    base: str
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    expected: tuple[str, ...] = ()

    def watch(self) -> Watched:
        def refuse(dialog: Any) -> None:
            self.problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def note(message: Any) -> None:
            if message.type == "error":
                self.problems.append(message.text)

        self.page.on("console", note)
        self.page.on("dialog", refuse)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        return self

    def open(self, address: str = "/") -> Watched:
        self.page.goto(self.base + address)
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until the page shows the answers to all requests so far, including the sweep and the curve."""
        self.page.wait_for_function(
            """() => {
                const result = document.getElementById("result");
                const sweep = document.getElementById("sweep-card");
                if (!document.getElementById("fatal").hidden) return true;
                return result.getAttribute("aria-busy") === "false" && sweep.getAttribute("aria-busy") !== "true"
                    && result.offsetParent !== null;
            }""",
            timeout=20_000,
        )

    def ask(self, act: Callable[[], Any], path: str = "/api/trajectory") -> tuple[Any, Any]:
        """Act on the page; returns the last request and its answer once the page shows it."""
        answers: list[Any] = []

        def note(response: Any) -> None:
            if path in response.url:
                answers.append(response)

        self.page.on("response", note)
        with self.page.expect_response(lambda response: path in response.url):
            act()
        self.settled()
        self.page.remove_listener("response", note)
        return answers[-1].request.post_data_json, answers[-1].json()

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def check(self) -> None:
        """Check that there was no console error, no dialog, and no request to another host."""
        found = [problem for problem in self.problems if not any(part in problem for part in self.expected)]
        assert found == []
        assert self.hosts == {urlsplit(self.base).netloc}
