"""Image files of a folder: a quick check of all of them, and a source that decodes them when they are needed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ltnode.data.folder_layout import raise_problems
from ltnode.errors import DataError, missing_extra
from ltnode.imagefiles.decode import LOCAL_FORMATS, MAX_PIXELS, UnusableImage, decode
from ltnode.imagefiles.header import header
from ltnode.progress import progress_bar
from ltnode.typing import Tensor, UInt8

FORMATS = (*LOCAL_FORMATS, "PPM")
_THREADS = 4
"""Decoders run outside of Python's lock, so that a few threads keep up with a network on a few cores."""
_NAMED = 3
"""Number of files and of sizes that a problem names."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images of given files, in the shape of a network's inputs; a `ltnode.data.streaming.Source`.

    Attributes:
        files: The files.
        shape: (C, H, W) to which every image is cropped, scaled and converted, as in predictions.
    """

    files: tuple[Path, ...]
    shape: tuple[int, int, int]
    dtype: torch.dtype = torch.uint8

    def __len__(self) -> int:
        return len(self.files)

    def read(self, positions: Sequence[int]) -> UInt8[Tensor, "N C H W"]:
        """Decode some images, in the given order.

        Raises:
            DataError: A file is damaged; the message names it.
        """
        pixels = torch.empty(len(positions), *self.shape, dtype=torch.uint8)
        target = pixels.numpy()

        def decode_into(place: int) -> None:
            target[place] = read_image(self.files[positions[place]], self.shape)

        for _ in self._threads.map(decode_into, range(len(positions))):
            pass
        return pixels

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="ltnode-decode")


def read_image(file: Path, shape: tuple[int, int, int]) -> Any:
    """Decode one image file as a prediction does: upright, over white, grey or RGB, centre-cropped and scaled to the shape.

    Raises:
        DataError: The file cannot be read, or is not an image.
    """
    try:
        return decode(file.read_bytes(), shape, MAX_PIXELS, FORMATS)[0]
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from error
    except UnusableImage as error:
        raise DataError(f"{file} is not an image that can be read: {error}; repair or remove it") from error


def check_files(
    path: Path, files: Sequence[Path], size: tuple[int, int] | None, known: Sequence[str] = ()
) -> tuple[int, int, int]:
    """Check the headers of all files, and return the shape (C, H, W) of the images.

    Images have one channel if all of them are grey, else three. Files that seem to be cut off are decoded to make sure.

    Args:
        path: The folder of the set, for messages.
        files: The files.
        size: Height and width to which images are scaled; None requires that all have the same size.
        known: Problems that were found before.

    Raises:
        DataError: What is wrong, one line per kind of problem, with counts and the names of the first files.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise missing_extra("Pillow", "images", "reading image files") from error
    unusable: list[str] = []
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    with progress_bar("checking", len(files), "files") as advance:
        for file in files:
            advance(1)
            try:
                found = header(file, MAX_PIXELS, FORMATS)
            except (OSError, UnusableImage) as error:
                unusable.append(f"{file.relative_to(path)} is not an image that can be read: {error}")
                continue
            sizes[found.height, found.width] += 1
            grey = grey and found.grey
    problems = list(known)
    if unusable:
        more = f"; {len(unusable) - _NAMED} other files cannot be read either" if len(unusable) > _NAMED else ""
        problems.append(f"{path}: {'; '.join(unusable[:_NAMED])}{more}. Repair or remove what cannot be read")
    if len(sizes) > 1 and size is None:
        listed = ", ".join(f"{n} of {rows} x {columns}" for (rows, columns), n in sizes.most_common(_NAMED))
        others = f" and {len(sizes) - _NAMED} other sizes" if len(sizes) > _NAMED else ""
        problems.append(
            f"{path}: images of different sizes ({listed}{others}; height x width); pass size=(height, width), or --image-size "
            "on the command line, to crop and scale them"
        )
    raise_problems(problems)
    return (1 if grey else 3, *(size or next(iter(sizes))))


def files_md5(path: Path, files: Sequence[Path]) -> str:
    """Return the md5 of the names of files and their sizes in bytes, as ``md5:...``; contents are not read."""
    digest = hashlib.md5(usedforsecurity=False)
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\n".encode())
    return f"md5:{digest.hexdigest()}"


def decoded(source: ImageFiles) -> UInt8[Tensor, "N C H W"]:
    """Decode all images; every file that turns out to be damaged is named.

    Raises:
        DataError: Some files are damaged.
    """
    pixels = torch.empty(len(source), *source.shape, dtype=torch.uint8)
    target, damaged = pixels.numpy(), []
    with progress_bar("decoding", len(source), "images") as advance:
        for place, file in enumerate(source.files):
            try:
                target[place] = np.asarray(read_image(file, source.shape))
            except DataError as error:
                damaged.append(str(error))
            advance(1)
    if damaged:
        raise_problems([damaged[0], *([f"{len(damaged) - 1} other files cannot be read either"] if len(damaged) > 1 else [])])
    return pixels
