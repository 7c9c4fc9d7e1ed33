"""Shifted test images: rotation exactly as Pillow rotates, and corruptions at five severities.

Images are (N, C, H, W), uint8 or floating point in [0, 1], before any normalisation.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ltnode.errors import InputError, unknown_name
from ltnode.trained.images import pillow
from ltnode.trained.pixels import check_pixels
from ltnode.typing import Float, Num, Tensor, UInt8

PAPER_ROTATIONS = tuple(range(0, 181, 15))
"""The 13 angles of the paper's rotation protocol, in degrees."""

# Images at a time: bounds the float64 copies of a rotation, and fixes which noise belongs to which image.
_ROTATION_BLOCK = 128
_CORRUPTION_BLOCK = 256


def rotate(images: Num[Tensor, "N C H W"], degrees: int | float) -> Num[Tensor, "N C H W"]:
    """Rotate images counter-clockwise about their centre with bilinear interpolation; the size is kept, the outside is black.

    Equivalent to ``PIL.Image.rotate(degrees, resample=BILINEAR, expand=False, fillcolor=0)``. The centre of each output pixel
    is mapped back to the source. If it falls outside the image, the pixel is black; otherwise it is interpolated between its
    four neighbours, and a neighbour beyond the border is replaced by the nearest pixel at the border. Multiples of 90 degrees
    (of 180 for images that are not square) only move pixels.

    Args:
        images: (N, C, H, W) uint8 or floating point in [0, 1], on any device.
        degrees: Angle, positive = counter-clockwise.

    Returns:
        Rotated images of the same shape, dtype and device. uint8 images equal Pillow's, which rounds values down;
        floating-point images are not rounded and lie within 1/255 of Pillow's.
    """
    _check_images(images)
    if not math.isfinite(degrees):
        raise InputError(f"degrees must be finite, not {degrees}")
    height, width = images.shape[-2:]
    angle = degrees % 360.0
    quarters, rest = divmod(angle, 90.0)
    if rest == 0 and (height == width or quarters % 2 == 0):
        return torch.rot90(images, int(quarters), dims=(-2, -1)).contiguous()
    source = _SourceGrid.of_rotation(angle, height, width, images.device)
    return torch.cat([source.interpolate(block) for block in torch.split(images, _ROTATION_BLOCK)])


class _SourceGrid(NamedTuple):
    """Source positions and weights of the P = H W output pixels; every field has shape (P,) or (P, 1)."""

    top_left: Tensor
    top_right: Tensor
    bottom_left: Tensor
    bottom_right: Tensor
    x_weight: Tensor
    y_weight: Tensor
    inside: Tensor

    @classmethod
    def of_rotation(cls, angle: float, height: int, width: int, device: torch.device) -> _SourceGrid:
        # float64 and 15 digits as in Pillow: pixels on the border and values next to an integer depend on them.
        radians = -math.radians(angle)
        cos, sin = round(math.cos(radians), 15), round(math.sin(radians), 15)
        x = torch.arange(width, dtype=torch.float64, device=device) + 0.5
        y = (torch.arange(height, dtype=torch.float64, device=device) + 0.5)[:, None]
        x_source = cos * x + sin * y + (cos * (-width / 2) + sin * (-height / 2) + width / 2)
        y_source = -sin * x + cos * y + (-sin * (-width / 2) + cos * (-height / 2) + height / 2)
        inside = (x_source >= 0) & (x_source < width) & (y_source >= 0) & (y_source < height)
        x_floor, y_floor = (x_source - 0.5).floor(), (y_source - 0.5).floor()
        left, right = ((x_floor.long() + step).clamp(0, width - 1) for step in (0, 1))
        top, bottom = ((y_floor.long() + step).clamp(0, height - 1) * width for step in (0, 1))
        corners = (row + column for row in (top, bottom) for column in (left, right))
        weights = (x_source - 0.5 - x_floor, y_source - 0.5 - y_floor, inside)
        return cls(*(corner.flatten() for corner in corners), *(weight.reshape(-1, 1) for weight in weights))

    def interpolate(self, images: Tensor) -> Tensor:
        # With pixels as the first axis a gather copies whole rows, which is several times faster than picking single elements.
        pixels = images.flatten(2).permute(2, 0, 1).reshape(self.inside.shape[0], -1)

        def between(left: Tensor, right: Tensor) -> Tensor:
            start = pixels.index_select(0, left).double()
            return start + (pixels.index_select(0, right).double() - start) * self.x_weight

        upper = between(self.top_left, self.top_right)
        value = upper + (between(self.bottom_left, self.bottom_right) - upper) * self.y_weight
        value = torch.where(self.inside, value, 0.0).to(images.dtype)
        return value.reshape(-1, *images.shape[:2]).permute(1, 2, 0).reshape(images.shape)


@dataclass(frozen=True)
class Corruption:
    """One kind of corruption.

    Attributes:
        parameter: Meaning of the levels.
        levels: Value of the parameter at severity 1 to 5.
        apply: (images float32 in [0, 1] (n, C, H, W), level, generator on the CPU) -> images, before clipping to [0, 1].
    """

    parameter: str
    levels: tuple[float, float, float, float, float]
    apply: Callable[[Tensor, float, torch.Generator], Tensor]


def _gaussian_noise(images: Tensor, level: float, generator: torch.Generator) -> Tensor:
    # A whole block is drawn on the CPU even for fewer images: the noise of an image depends on its position and the seed, but
    # not on the number of images or the device.
    noise = torch.randn((_CORRUPTION_BLOCK, *images.shape[1:]), generator=generator)
    return images + level * noise[: images.shape[0]].to(images.device)


def _gaussian_blur(images: Tensor, level: float, _: torch.Generator) -> Tensor:
    radius = int(4 * level + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / level).square())
    taps = (weights / weights.sum()).tolist()
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, (radius, radius, radius, radius), mode="replicate")
    rows = sum((tap * padded.narrow(-2, i, height) for i, tap in enumerate(taps)), start=torch.zeros(()))
    return sum((tap * rows.narrow(-1, i, width) for i, tap in enumerate(taps)), start=torch.zeros(()))


def _contrast(images: Tensor, level: float, _: torch.Generator) -> Tensor:
    mean = images.mean((-2, -1), keepdim=True)
    return mean + level * (images - mean)


def _brightness(images: Tensor, level: float, _: torch.Generator) -> Tensor:
    # Raising the HSV value at fixed hue and saturation scales the colour so that its largest channel equals the new value.
    value = images.amax(1, keepdim=True)
    brighter = (value + level).clamp_max(1.0)
    return torch.where(value > 0, images * (brighter / value), brighter)


def _jpeg(images: Tensor, level: float, _: torch.Generator) -> Tensor:
    Image = pillow("JPEG corruption")
    if images.shape[1] not in (1, 3):
        raise InputError(f"JPEG needs 1 or 3 channels, not {images.shape[1]}: choose another corruption")
    decoded = []
    for image in _to_uint8(images).permute(0, 2, 3, 1).cpu():
        buffer = io.BytesIO()
        pixels = image.squeeze(-1) if image.shape[-1] == 1 else image
        Image.fromarray(pixels.numpy()).save(buffer, format="JPEG", quality=int(level))
        # A bytearray is writable: torch warns about sharing read-only memory.
        data = bytearray(Image.open(buffer).tobytes())
        decoded.append(torch.frombuffer(data, dtype=torch.uint8).reshape(image.shape))
    return torch.stack(decoded).permute(0, 3, 1, 2).to(images.device).float() / 255


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": Corruption("standard deviation", (0.04, 0.06, 0.08, 0.09, 0.10), _gaussian_noise),
    "gaussian-blur": Corruption("standard deviation in pixels", (0.4, 0.6, 0.7, 0.8, 1.0), _gaussian_blur),
    "contrast": Corruption("factor on the distance from the channel's mean", (0.75, 0.5, 0.4, 0.3, 0.15), _contrast),
    "brightness": Corruption("added to the HSV value", (0.05, 0.1, 0.15, 0.2, 0.3), _brightness),
    "jpeg": Corruption("quality", (80.0, 65.0, 58.0, 50.0, 40.0), _jpeg),
}
"""The corruptions by name, with the levels of CIFAR-10-C (Hendrycks and Dietterich, 2019)."""


def corrupt(images: Num[Tensor, "N C H W"], name: str, severity: int, seed: int = 0) -> UInt8[Tensor, "N C H W"]:
    """Corrupt images at one of five severities.

    The result is a function of the images, their order, the name, the severity and the seed. Up to rounding it does not depend on
    the device, and the first n results are those of the first n images.

    Args:
        images: (N, C, H, W) uint8 or floating point in [0, 1], on any device; "jpeg" needs 1 or 3 channels and Pillow.
        name: Name of the corruption, a key of ``CORRUPTIONS``.
        severity: 1 (mild) to 5 (strong).
        seed: Seed of the noise, at least 0; the other corruptions are deterministic.

    Returns:
        (N, C, H, W) uint8 on the device of ``images``, rounded to the nearest level.
    """
    _check_images(images)
    if name not in CORRUPTIONS:
        raise InputError(unknown_name("corruption", name, CORRUPTIONS))
    if isinstance(severity, bool) or severity not in range(1, 6):
        raise InputError(f"severity must be 1, 2, 3, 4 or 5, not {severity!r}")
    if seed < 0:
        raise InputError(f"seed must be at least 0, not {seed}")
    corruption = CORRUPTIONS[name]
    generator = torch.Generator().manual_seed(seed)
    blocks = (_to_float(block) for block in torch.split(images, _CORRUPTION_BLOCK))
    level = corruption.levels[severity - 1]
    return torch.cat([_to_uint8(corruption.apply(block, level, generator)) for block in blocks])


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a torch.Tensor, not {type(images).__name__}: convert them with torch.as_tensor")
    if images.ndim != 4 or images.numel() == 0:
        raise InputError(f"images must have shape (N, C, H, W) and not be empty, not {tuple(images.shape)}")
    if images.is_floating_point() and bool(images.isnan().any()):
        raise InputError("images must lie in [0, 1], but some pixels are NaN")
    try:
        check_pixels(images)
    except InputError as error:
        raise InputError(f"{error}; rotate and corrupt images before they are normalised") from error


def _to_float(images: Tensor) -> Float[Tensor, "N C H W"]:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _to_uint8(images: Float[Tensor, "N C H W"]) -> UInt8[Tensor, "N C H W"]:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
