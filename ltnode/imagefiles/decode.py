"""Decode an untrusted image file into pixels of a network's shape, or say why that is impossible.

This is a security boundary, because a server passes on what strangers send. Only the listed formats are tried, the number of
pixels is read from the header before anything is decoded, and nothing but the given bytes is opened. The module imports nothing
of the package, because `worker.py` runs it in processes that must start quickly and stay small.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""The formats that browsers show."""
LOCAL_FORMATS = (*FORMATS, "TIFF")
"""Formats for local files: TIFF is a large family with a large decoder, so it is not tried for uploads."""
MAX_PIXELS = 50_000_000
ORIENTATION = 0x0112
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")

Decoded = tuple[NDArray[np.uint8], tuple[str, ...]]
"""Pixels (C, H, W), and a description of every conversion."""


class UnusableImage(ValueError):
    """The bytes are not an image in one of the formats, are damaged, or hold too many pixels."""


def decode(data: bytes, shape: tuple[int, int, int], max_pixels: int, formats: tuple[str, ...] = FORMATS) -> Decoded:
    """Decode an image file into pixels of shape (C, H, W) with 1 or 3 channels; see `ltnode.trained.decode_image`.

    Raises:
        UnusableImage: The reason, for the sender of the file.
    """
    if not data:
        raise UnusableImage("the file is empty")
    check_webp_size(data, max_pixels)
    with opened(io.BytesIO(data), max_pixels, formats) as picture:
        check_size(picture.size, max_pixels)
        try:
            return _converted(picture, shape, max_pixels)
        except UnusableImage:
            raise
        except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ...: all of them mean damaged bytes
            raise UnusableImage(f"the image is damaged or truncated: {_reason(error)}") from error


def pixel_count(data: bytes, max_pixels: int, formats: tuple[str, ...] = FORMATS) -> int:
    """Number of pixels that the header declares; see `decode` for what is refused."""
    check_webp_size(data, max_pixels)
    with opened(io.BytesIO(data), max_pixels, formats) as picture:
        check_size(picture.size, max_pixels)
        return int(picture.size[0] * picture.size[1])


def opened(file: io.BufferedReader | io.BytesIO, max_pixels: int, formats: tuple[str, ...]) -> Any:
    """The image with its header parsed and its pixels not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        raise UnusableImage(
            f"this is not an image in one of the formats {', '.join(formats)}, or its header is damaged"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UnusableImage(_too_large("too many", max_pixels)) from None
    except Exception as error:  # whatever a parser raises for a hostile header
        raise UnusableImage(f"the image is damaged: {_reason(error)}") from error


def _converted(picture: Any, shape: tuple[int, ...], max_pixels: int) -> Decoded:
    notes: list[str] = []
    animated = bool(getattr(picture, "is_animated", False))  # ask before loading: it seeks to the next frame and back
    deep = any(";16" in str(tile[-1]) for tile in picture.tile) or picture.mode.startswith("I;16")
    picture.load()
    check_size(picture.size, max_pixels)  # the frames of an animation may be larger than its header says
    if animated:
        notes.append("animation: only the first frame is used")
    plain = _eight_bits(_upright(picture, notes), deep, notes)
    plain = _with_channels(plain, shape[0], notes)
    plain = _resized(plain, (shape[2], shape[1]), notes)
    pixels: NDArray[np.uint8] = np.array(plain)  # a copy, since Pillow's buffer is read-only
    pixels = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    return pixels, tuple(notes)


def _upright(picture: Any, notes: list[str]) -> Any:
    """Rotate or flip the picture as its EXIF orientation says."""
    from PIL import ImageOps

    try:
        orientation = picture.getexif().get(ORIENTATION, 1)
        if orientation not in range(2, 9):
            return picture
        picture = ImageOps.exif_transpose(picture)
    except Exception:  # damaged EXIF data are no reason to refuse the picture
        notes.append("EXIF data cannot be read")
        return picture
    notes.append(f"rotated upright (EXIF orientation {orientation})")
    return picture


def _eight_bits(picture: Any, deep: bool, notes: list[str]) -> Any:
    """Convert the picture to 8 bits without transparency, in mode L or RGB."""
    from PIL import Image

    if picture.mode == "F" or (picture.mode == "I" and not (deep or picture.format == "PNG")):
        raise UnusableImage(
            f"pixels of 32 bits (Pillow mode {picture.mode}) have an unknown range; save the image with 8 bits, or as .npy"
        )
    if deep or picture.mode == "I":
        notes.append("16 bits -> 8 bits")
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int32)  # at most 16 bits: 8 bytes per value would only cost time
        return Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
    transparent = picture.mode in _WITH_ALPHA or "transparency" in picture.info
    if picture.mode == "P":
        notes.append("palette -> RGB")
    elif picture.mode not in ("1", "L", "RGB", *_WITH_ALPHA):
        notes.append(f"{picture.mode} -> RGB")
    grey = picture.mode in GREY_MODES
    if transparent:
        layer = _in_mode(picture, "RGBA")
        if layer.getextrema()[3][0] < 255:
            notes.append("transparency filled with white")
            white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
            picture = Image.alpha_composite(white, layer)
    return _in_mode(picture, "L" if grey else "RGB")


def _with_channels(picture: Any, channels: int, notes: list[str]) -> Any:
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        notes.append("colour -> grey" if mode == "L" else "grey -> three equal channels")
    return _in_mode(picture, mode)


def _in_mode(picture: Any, mode: str) -> Any:
    # Pillow's convert copies even if the mode is unchanged, and these pictures may be large.
    return picture if picture.mode == mode else picture.convert(mode)


def _resized(picture: Any, size: tuple[int, int], notes: list[str]) -> Any:
    """Centre-crop the picture to the aspect ratio of (width, height), and resize it."""
    from PIL import Image, ImageOps

    if picture.size == size:
        return picture
    width, height = picture.size
    scale = min(width / size[0], height / size[1])
    kept = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    if kept != picture.size:
        notes.append(f"centre-cropped {width}x{height} -> {kept[0]}x{kept[1]}")
    if kept != size:
        notes.append(f"resized {kept[0]}x{kept[1]} -> {size[0]}x{size[1]}")
    return ImageOps.fit(picture, size, Image.Resampling.BILINEAR)


def check_size(size: tuple[int, int], max_pixels: int) -> None:
    """Refuse an image without pixels, or with too many."""
    width, height = size
    if width < 1 or height < 1:
        raise UnusableImage(f"the image has no pixels: its size is {width}x{height}")
    if width * height > max_pixels:
        raise UnusableImage(_too_large(f"{width}x{height} = {width * height:,}", max_pixels))


def _too_large(number: str, max_pixels: int) -> str:
    return f"the image has {number} pixels; at most {max_pixels:,} are allowed: scale it down first"


def check_webp_size(data: bytes, max_pixels: int) -> None:
    """Read the size of a WebP file from its first chunk, since Pillow allocates the whole canvas before it reports it."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return
    match data[12:16]:
        case b"VP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        case _:
            return
    check_size((width, height), max_pixels)


def _reason(error: Exception) -> str:
    if isinstance(error, struct.error):
        return "the header ends too early"
    return " ".join(str(error).split())[:200] or type(error).__name__
