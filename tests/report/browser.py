"""Opens a page in headless Chromium and reports what it shows, with command-line flags and a small server instead of a driver."""

from __future__ import annotations

import contextlib
import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-budget=20000",
)  # fmt: skip

# A second page from the same origin that loads the page in a frame and records its content when it is complete.
WATCHER = """<!doctype html><link rel="icon" href="data:,">
<iframe src="PAGE" width="1000" height="800"></iframe><pre></pre><script>
addEventListener("load", async () => {
  const page = document.querySelector("iframe").contentWindow;
  const images = [...page.document.images];
  await Promise.allSettled(images.map(image => image.decode()));
  document.querySelector("pre").textContent = JSON.stringify({
    images: images.map(image => ({alt: image.alt, width: image.naturalWidth, source: image.currentSrc.slice(0, 4096)})),
    captions: [...page.document.querySelectorAll("figcaption")].map(caption => caption.textContent),
    tables: page.document.querySelectorAll("table").length,
    headings: [...page.document.querySelectorAll("h1, h2")].map(heading => heading.textContent),
    background: page.getComputedStyle(page.document.body).backgroundColor,
    overflow: page.document.documentElement.scrollWidth - page.document.documentElement.clientWidth,
    resources: page.performance.getEntriesByType("resource").map(entry => entry.name),
  });
});
</script>"""


@dataclass
class Seen:
    """What the browser saw.

    Attributes:
        page: Images, captions, tables, headings, background, overflow and requested resources.
        requests: Paths that were requested from the server, except for the watcher.
        console: Lines of the browser's console.
    """

    page: dict[str, Any]
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)


def find_chromium() -> str:
    """Path of the browser; skips the test if there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    return found


def look_at(page: Path, profile: Path, dark: bool = False) -> Seen:
    """Open a page in the light or in the dark mode of the system."""
    with _server(page.parent) as (address, requests):
        (page.parent / "watcher.html").write_text(WATCHER.replace("PAGE", page.name), encoding="utf-8")
        try:
            command = [
                find_chromium(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"{address}/watcher.html",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        finally:
            (page.parent / "watcher.html").unlink()
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, flags=re.DOTALL)
    assert found and found.group(1), f"the page did not load: {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(found.group(1))), [path for path in requests if "watcher" not in path], console)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder locally, and list the requests."""
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            requests.append(self.path)
            super().do_GET()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
