"""Download the official files of an image set, with checksums, resumption and a progress bar."""

from __future__ import annotations

import http.client
import logging
import shutil
from pathlib import Path
from urllib.parse import urljoin

from ltnode.data.cache import data_root
from ltnode.data.images import SetInfo, describe, import_files
from ltnode.data.specs import ImageSpec, image_spec
from ltnode.download import Download, Report, is_web_address, reporter
from ltnode.errors import DataError, InputError, MissingExtraError


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
    with reporter(progress) as report:
        for file in spec.downloads:
            _retrieve(spec, file, addresses, folder, report, attempts)
    fetched = import_files(name, folder, base)
    shutil.rmtree(folder)  # the arrays contain everything
    return fetched


def _checked_address(url: str) -> str:
    if not is_web_address(url):
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
        download = Download(folder / f"{file}.part", report, attempts)
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
