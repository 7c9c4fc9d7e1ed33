"""A web server on this machine that can drop connections, redirect, or send without end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """A local web server that can drop connections.

    Attributes:
        files: Content by path below /.
        breaks: For a path, the number of bytes of each of the next responses before the connection is dropped.
        ranges: Whether range requests are supported.
        redirects: New addresses of paths that have moved.
        endless: Paths that are answered with bytes without end.
        requests: Paths and range headers of the requests.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    redirects: dict[str, str] = field(default_factory=dict)
    endless: set[str] = field(default_factory=set)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def web_server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            path = self.path.lstrip("/")
            state.requests.append((path, byte_range))
            if path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[path])
                self.end_headers()
                return
            if path in state.endless:
                self._send_without_end()
                return
            body = state.files.get(path)
            if body is None:
                self.send_error(404)
                return
            start = int(byte_range.removeprefix("bytes=").removesuffix("-")) if byte_range and state.ranges else 0
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            limit = state.breaks[path].pop(0) if state.breaks.get(path) else len(body)
            self.wfile.write(body[start : start + limit])
            if start + limit < len(body):
                self.close_connection = True

        def _send_without_end(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{httpd.server_address[1]}/"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
