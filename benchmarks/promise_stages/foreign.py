"""Images that belong to no data set, made from fixed seeds: noise, constants, gradients, and test images taken apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COUNT = 2000
_PATCHES = 4


def made_up_images(test: Tensor, count: int = COUNT) -> dict[str, Tensor]:
    """Return ``count`` uint8 images of each kind, with the shape and on the device of the test images.

    Args:
        test: (N, C, H, W) uint8 test images, for the kinds that change images.
        count: Number of images of each kind; at most N for those that change images.
    """
    made = {}
    for seed, (name, make) in enumerate(_KINDS.items()):
        generator = torch.Generator().manual_seed(1000 + seed)
        made[name] = make(test[:count].cpu(), min(count, len(test)), generator).to(test.device)
    return made


def _uniform(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 256, (count, *test.shape[1:]), dtype=torch.uint8, generator=generator)


def _gaussian(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Noise with the mean and the standard deviation of each channel of the test images."""
    pixels = test.float()
    mean, std = pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True)
    return _pixels(mean + std * torch.randn((count, *test.shape[1:]), generator=generator))


def _constant(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """One random colour per image; black and white are among them."""
    colours = torch.randint(0, 256, (count, test.shape[1], 1, 1), generator=generator)
    colours[0], colours[1] = 0, 255
    return colours.to(torch.uint8).expand(-1, -1, *test.shape[2:]).contiguous()


def _gradient(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """From one random colour to another along a random direction."""
    height, width = test.shape[2:]
    angle = 2 * torch.pi * torch.rand((count, 1, 1), generator=generator)
    rows = torch.linspace(-1, 1, height)[:, None]
    columns = torch.linspace(-1, 1, width)[None, :]
    along = angle.cos() * columns + angle.sin() * rows
    along = (along - along.amin((1, 2), keepdim=True)) / (along.amax((1, 2), keepdim=True) - along.amin((1, 2), keepdim=True))
    ends = torch.rand((2, count, test.shape[1], 1, 1), generator=generator) * 255
    return _pixels(ends[0] + (ends[1] - ends[0]) * along[:, None])


def _shuffled(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Test images cut into 4 x 4 patches, which are put together in random order."""
    n, channels, height, width = test.shape
    rows, columns = height // _PATCHES, width // _PATCHES
    cut = test.reshape(n, channels, _PATCHES, rows, _PATCHES, columns).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(n, _PATCHES * _PATCHES, channels, rows, columns)
    order = torch.rand((n, _PATCHES * _PATCHES), generator=generator).argsort(1)
    mixed = cut[torch.arange(n)[:, None], order].reshape(n, _PATCHES, _PATCHES, channels, rows, columns)
    return mixed.permute(0, 3, 1, 4, 2, 5).reshape(test.shape)


def _inverted(test: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return 255 - test


def _pixels(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


_KINDS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "uniform noise": _uniform,
    "Gaussian noise": _gaussian,
    "constant": _constant,
    "gradient": _gradient,
    "shuffled patches": _shuffled,
    "inverted": _inverted,
}
