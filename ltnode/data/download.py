"""Download the official files of an image set, with checksums, resumption and a progress bar."""

from __future__ import annotations

import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from ltnode.data.cache import data_root
from ltnode.data.images import SetInfo, describe, import_files
from ltnode.data.specs import ImageSpec, image_spec
from ltnode.errors import DataError, InputError, MissingExtraError

Report = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes (if known)

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte
_PAUSE = 0.5  # seconds before the first retry, doubled for each further one


def fetch(
    name: str,
    root: Path | str | None = None,
    progress: bool | Report = True,
    base_url: str | None = None,
    *,
    attempts: int = 4,
) -> SetInfo:
    """Download an image set, verify it, and store it as memory-mapped arrays under ``root``.

    An interrupted download continues where it stopped, also in a later call, because partial files stay on disk. A set that is
    already verified is not downloaded again.

    Args:
        name: Name of the image set.
        root: Data folder; see :func:`ltnode.data.cache.data_root`.
        progress: Whether to show a progress bar on a terminal, or a callback (file name, bytes so far, total bytes or None).
        base_url: URL of a mirror with the official files; the checksums are the same.
        attempts: Number of attempts per URL.

    Raises:
        DataError: A file is missing, incomplete, or not the official one.
    """
    spec, base = image_spec(name), data_root(root)
    present = describe(name, base)
    if present.status == "ready" and present.verified:
        return present
    addresses = spec.urls if base_url is None else (_checked_address(base_url),)
    folder = base / spec.name / "downloads"
    with _reporter(progress) as report:
        for file in spec.downloads:
            _retrieve(spec, file, addresses, folder, report, attempts)
    fetched = import_files(name, folder, base)
    shutil.rmtree(folder)  # the arrays contain everything
    return fetched


def _checked_address(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"base_url must start with http:// or https://, not {url!r}")
    return url if url.endswith("/") else url + "/"


def _retrieve(spec: ImageSpec, file: str, addresses: tuple[str, ...], folder: Path, report: Report, attempts: int) -> None:
    """Download one file with the right md5 into ``folder``, from the first URL that provides it."""
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError("downloading data needs pooch, which is not installed: pip install pooch") from error
    pooch.get_logger().setLevel(logging.WARNING)  # its log messages would interfere with the progress bar
    failures = []
    for address in addresses:
        url = urljoin(address, file)
        download = _Download(folder / f"{file}.part", report, attempts)
        for _ in range(2):
            try:
                pooch.retrieve(url, f"md5:{spec.file_md5[file]}", fname=file, path=folder, downloader=download)
                return
            except ValueError:  # pooch found a wrong md5 and deleted the file
                failures.append(f"{url}: not the official file, its md5 is not {spec.file_md5[file]}")
                if not download.resumed:
                    break  # otherwise the old partial file may be damaged: try once more from the beginning
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{url}: {error}")
                break
    raise DataError(
        f"could not download {spec.title}: " + "; ".join(failures) + ". Partial files are kept: run the command "
        f"again to continue, or import existing files with `ltnode data import {spec.name} DIR`"
    )


class _Download:
    """Downloader for pooch that uses a partial file, which survives interruptions."""

    def __init__(self, part: Path, report: Report, attempts: int) -> None:
        self.part = part
        self.report = report
        self.attempts = attempts
        self.resumed = False  # whether the last file started with a partial file of an earlier download

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
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
            time.sleep(_PAUSE * 2**attempt)
        self.part.replace(output_file)

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> None:
        """Request the missing bytes and append them."""
        start = self._arrived()
        request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
        try:
            response = urllib.request.urlopen(request, timeout=_TIMEOUT)
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
            length = response.headers.get("Content-Length")
            total = start + int(length) if length is not None else None
            with self.part.open("ab" if start else "wb") as stream:
                while block := response.read(_BLOCK):
                    stream.write(block)
                    start += len(block)
                    self.report(self.part.stem, start, total)
        if total is not None and start < total:
            raise ConnectionError(f"the connection was lost after {start} of {total} bytes")


@contextmanager
def _reporter(progress: bool | Report) -> Iterator[Report]:
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
