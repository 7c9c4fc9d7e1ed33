"""Image files as raw inputs of a network, and raw inputs as image files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ltnode.errors import InputError, missing_extra
from ltnode.imagefiles.decode import FORMATS, LOCAL_FORMATS, MAX_PIXELS, UnusableImage, decode
from ltnode.typing import Tensor, UInt8

__all__ = ["FORMATS", "LOCAL_FORMATS", "MAX_PIXELS", "DecodedImage", "check_image_shape", "decode_image", "pillow", "to_png"]


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """Pixels in the shape that a network takes, and the conversions that were needed.

    Attributes:
        pixels: Raw values in 0..255.
        notes: Description of every conversion, in order; empty if the image already had the right shape.
    """

    pixels: UInt8[Tensor, "C H W"]
    notes: tuple[str, ...]


def decode_image(
    data: bytes, shape: tuple[int, ...], max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS
) -> DecodedImage:
    """Decode an image file into pixels of a given shape.

    The image is rotated upright by its EXIF orientation, composited over white where it is transparent, converted to grey or RGB,
    centre-cropped to the aspect ratio of the shape and resized (bilinear with antialiasing), exactly as `ltnode.data.from_folder`
    does. Only the first frame of an animation is used. Brightness is never inverted.

    Args:
        data: Content of the file.
        shape: (C, H, W) with 1 or 3 channels.
        max_pixels: Largest number of pixels of the file, before resizing.
        formats: Pillow's names of the formats that may be tried.

    Raises:
        InputError: The bytes are not an image in one of the formats, are damaged, or hold too many pixels.
        MissingExtraError: Pillow is not installed.
    """
    pillow("reading image files")
    check_image_shape(shape)
    try:
        pixels, notes = decode(data, (shape[0], shape[1], shape[2]), max_pixels, formats)
    except UnusableImage as error:
        raise InputError(str(error)) from error
    return DecodedImage(torch.from_numpy(pixels), notes)


def check_image_shape(shape: tuple[int, ...]) -> None:
    """Require an input shape that image files can have."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"image files hold 1 or 3 channels, but the network takes inputs of shape {shape}; give arrays instead")


def to_png(pixels: UInt8[Tensor, "C H W"]) -> bytes:
    """Encode pixels with 1 or 3 channels as a PNG file.

    Raises:
        InputError: There is another number of channels.
        MissingExtraError: Pillow is not installed.
    """
    Image = pillow("writing image files")
    if pixels.shape[0] not in (1, 3):
        raise InputError(f"a PNG file holds 1 or 3 channels, but the pixels have shape {tuple(pixels.shape)}")
    array = pixels.cpu().numpy()
    picture = Image.fromarray(np.ascontiguousarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0)))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


def pillow(purpose: str) -> Any:
    """The module ``PIL.Image``.

    Raises:
        MissingExtraError: Pillow is not installed; the message names the purpose.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("Pillow", "images", purpose) from error
    return Image
