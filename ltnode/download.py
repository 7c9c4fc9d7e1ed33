"""Bounded, resumable downloads with a progress bar."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ltnode.errors import DataError

Report = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes (if known)

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte
_PAUSE = 0.5  # seconds before the first retry, doubled for each further one
_WEB = ("http", "https")


def is_web_address(text: str) -> bool:
    """Whether a text is an address that `Download` takes."""
    return urlsplit(text).scheme in _WEB


class Download:
    """A download into a partial file, which survives interruptions; pooch can call it."""

    def __init__(self, part: Path, report: Report, attempts: int = 4, most: int | None = None) -> None:
        """Prepare the download.

        Args:
            part: The partial file; if it exists, the download continues it.
            report: Function that is told about the progress.
            attempts: Number of attempts.
            most: Largest size of the file in bytes; a server that sends more is not listened to any longer.
        """
        self.part = part
        self.report = report
        self.attempts = attempts
        self.most = most
        self.resumed = False  # whether the last file started with a partial file of an earlier download

    def __call__(self, url: str, output_file: str | Path, pooch: Any = None) -> None:
        """Download a file.

        Raises:
            DataError: The file is larger than ``most``, or the address is none.
            OSError, http.client.HTTPException: The server cannot be reached or does not have the file.
        """
        self.resumed = self._arrived() > 0
        for attempt in range(self.attempts):
            try:
                self._continue(url)
                break
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt + 1 == self.attempts:
                    raise
            except (OSError, http.client.HTTPException):
                if attempt + 1 == self.attempts:
                    raise
            except ValueError as error:
                raise DataError(f"{url}, or an address that it redirects to, is not a web address ({error})") from error
            time.sleep(_PAUSE * 2**attempt)
        self.part.replace(output_file)

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> None:
        """Request the missing bytes and append them."""
        start = self._arrived()
        request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
        try:
            response = _OPENER.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if error.headers.get("Content-Range", "") == f"bytes */{start}":
                    return  # the partial file is already complete
                self.part.unlink()
                self.resumed = False
                raise ConnectionError("the partial file did not match the file on the server and was deleted") from error
            raise
        with response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0  # the server ignores ranges and sends everything
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() else None
            self._check(total or 0, url)
            with self.part.open("ab" if start else "wb") as stream:
                while block := response.read(_BLOCK):
                    start += len(block)
                    self._check(start, url)
                    stream.write(block)
                    self.report(self.part.stem, start, total)
        if total is not None and start < total:
            raise ConnectionError(f"the connection was lost after {start} of {total} bytes")

    def _check(self, size: int, url: str) -> None:
        if self.most is not None and size > self.most:
            raise DataError(f"{url} must have at most {self.most:,} bytes, but the server sends {size:,} or more")


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from an encrypted connection to one that anybody on the way can read and change."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request for the new address."""
        if urlsplit(newurl).scheme not in (_WEB if req.type == "http" else ("https",)):
            raise urllib.error.HTTPError(req.full_url, code, f"a redirect to {newurl} is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_NoDowngrade)


@contextmanager
def reporter(progress: bool | Report) -> Iterator[Report]:
    """The callback, or a progress bar if stderr is a terminal, or nothing."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda file, done, total: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    except ImportError:  # the progress bar is optional
        yield lambda file, done, total: None
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        yield report
