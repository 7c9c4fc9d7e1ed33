"""Size and kind of an image file from its header, and whether the file is whole, without decoding it where possible."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

from ltnode.imagefiles.decode import GREY_MODES, ORIENTATION, UnusableImage, check_size, check_webp_size, opened

_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
"""What stands at the end of a whole file, possibly followed by other data."""
_TAIL = 1 << 16
_TURNED = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""


class Header(NamedTuple):
    """Height and width of an image as it is seen, upright, and whether it is grey."""

    height: int
    width: int
    grey: bool


def header(path: Path, max_pixels: int, formats: tuple[str, ...]) -> Header:
    """Read the header of an image file. A file without the end of its format is decoded, to see whether it is damaged.

    Raises:
        UnusableImage: The file is empty, not an image in one of the formats, damaged, or has too many pixels.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(30)
        if not start:
            raise UnusableImage("the file is empty")
        check_webp_size(start, max_pixels)
        file.seek(0)
        with opened(file, max_pixels, formats) as picture:
            check_size(picture.size, max_pixels)
            turned = _orientation(picture) in _TURNED
            if not _has_end(file, str(picture.format)):
                file.seek(0)
                _check_content(file, max_pixels, formats)
            width, height = picture.size[::-1] if turned else picture.size
            return Header(height, width, picture.mode in GREY_MODES)


def _orientation(picture: Any) -> int:
    # Asking a PNG file for EXIF data that its header does not have would decode the image.
    if picture.format == "PNG" and "exif" not in picture.info:
        return 1
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data are no reason to refuse the picture
        return 1


def _has_end(file: io.BufferedReader | io.BytesIO, kind: str) -> bool:
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    return kind in _ENDS and _ENDS[kind] in file.read()


def _check_content(file: io.BufferedReader | io.BytesIO, max_pixels: int, formats: tuple[str, ...]) -> None:
    with opened(file, max_pixels, formats) as picture:
        try:
            picture.load()
        except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ...: all of them mean damaged bytes
            raise UnusableImage(f"the image is damaged or truncated: {' '.join(str(error).split())[:200]}") from error
