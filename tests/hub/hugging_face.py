"""A fake of the Hugging Face Hub on this machine: as much of its API as publishing and reading a model needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """The state of the server.

    Attributes:
        url: Its address.
        revisions: Files by commit of each repository, the newest last.
        private: Repositories that were created as private ones.
        tokens: Authorization headers of the requests.
        sizes: Sizes that the list of files states in place of the true ones.
        requests: Paths of the requests.
    """

    url: str = ""
    revisions: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    tokens: set[str | None] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """Add a commit that changes some files; returns its name."""
        earlier = self.revisions.setdefault(repository, {})
        everything = {**(list(earlier.values())[-1] if earlier else {}), **files}
        name = hashlib.sha1(repr((len(earlier), sorted(everything.items()))).encode(), usedforsecurity=False).hexdigest()
        earlier[name] = everything
        return name

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.revisions.get(repository, {})
        if revision == "main" and commits:
            return list(commits.items())[-1]
        return (revision, commits[revision]) if revision in commits else None


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            parts = self._note()
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if parts == ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            elif parts == ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
                hub.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
                if name in hub.revisions:
                    self._json({"error": "exists", "url": f"{hub.url}/{name}"}, 409)
                    return
                hub.commit(name, {".gitattributes": b""})
                self._json({"url": f"{hub.url}/{name}"})
            elif parts[4] == "preupload":
                files = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
                ]
                self._json({"files": files})
            elif parts[4] == "commit":
                repository = "/".join(parts[2:4])
                lines = [json.loads(line) for line in body.splitlines()]
                files = {
                    line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
                }
                commit = hub.commit(repository, files)
                self._json({"commitOid": commit, "commitUrl": f"{hub.url}/{repository}/commit/{commit}", "success": True})
            else:
                self._json({"error": "unknown"}, 404)

        def do_GET(self) -> None:
            parts = self._note()
            if parts[:2] == ["api", "models"] and parts[4] == "revision":
                repository = "/".join(parts[2:4])
                found = hub.find(repository, "/".join(parts[5:]))
                if found is None:
                    self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                    return
                commit, files = found
                siblings = [{"rfilename": name, "size": hub.sizes.get(name, len(data))} for name, data in files.items()]
                self._json({"id": repository, "modelId": repository, "sha": commit, "siblings": siblings, "tags": []})
            else:
                self._file(parts)

        def do_HEAD(self) -> None:
            self._file(self._note())

        def _file(self, parts: list[str]) -> None:
            found = hub.find("/".join(parts[:2]), parts[3]) if len(parts) > 4 and parts[2] == "resolve" else None
            data = None if found is None else found[1].get("/".join(parts[4:]))
            if found is None or data is None:
                self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            etag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            self._answer(data, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": found[0], "Content-Type": "application/octet-stream"})

        def _note(self) -> list[str]:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(path)
            hub.tokens.add(self.headers.get("Authorization"))
            return path.strip("/").split("/")

        def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
            self._answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

        def _answer(self, data: bytes, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def fake_hub() -> Iterator[Hub]:
    hub = Hub()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
