"""Normalisation and augmentation of batches on their device.

Crops and flips operate on raw uint8 pixels; the batch is then converted to float and normalised. Random crops are a pure
function of (seed, epoch, sample index), independent of the batch size, the number of processes and interruptions of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from ltnode.counter_rng import GOLDEN, WORD, as_int64, split_mix, split_mix_int
from ltnode.errors import InputError
from ltnode.typing import Bool, Float, Int, Num, Tensor

_DRAW_BITS = 21  # bits per draw, three draws per 64-bit word; a range of 2p + 1 values is uniform up to (2p + 1) / 2^21


@dataclass(frozen=True)
class Normalisation:
    """Per-channel (images) or per-feature (vectors) standardisation.

    ``apply`` computes ``(x / 255 - mean) / std`` for uint8 input and ``(x - mean) / std`` for floating-point input, where float
    images are expected in [0, 1]. ``mean`` and ``std`` have one entry per channel or feature (dimension 1 of a batch).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(f"mean and std must have one entry per channel, not {len(self.mean)} and {len(self.std)} entries")
        if not all(s > 0 for s in self.std):
            raise InputError(f"std must be positive in every channel, not {self.std}")

    @classmethod
    def fitted(cls, x: Num[Tensor, "N C *rest"]) -> Normalisation:
        """Fit mean and population std per channel of ``x``; a constant channel gets std 1 and is mapped to 0."""
        mean, std = [], []
        # One channel at a time, because a float64 copy of a whole image set may not fit into memory.
        for channel in x.unbind(1):
            values = channel.to(torch.float64)
            values = values / 255 if x.dtype == torch.uint8 else values
            mean.append(values.mean().item())
            spread = values.std(correction=0).item()
            std.append(spread if spread > 1e-12 * max(1.0, abs(mean[-1])) else 1.0)
        return cls(tuple(mean), tuple(std))

    def apply(self, x: Num[Tensor, "B C *rest"], dtype: torch.dtype | None = None) -> Float[Tensor, "B C *rest"]:
        """Standardise a batch on its device.

        Args:
            x: uint8 pixels or floating-point values, with channels or features in dimension 1.
            dtype: Dtype of the result; by default that of a floating-point ``x``, and the default dtype for uint8.
        """
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            raise InputError(
                f"x must have {len(self.mean)} channels or features in dimension 1, but its shape is {tuple(x.shape)}"
            )
        if dtype is None:
            dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        mean, std = _constants(self.mean, self.std, x.ndim, dtype, x.device)
        if x.dtype == torch.uint8:
            return x.to(dtype, copy=True).div_(255).sub_(mean).div_(std)
        return (x.to(dtype) - mean) / std


@lru_cache(maxsize=64)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # Cached on the device: a copy per batch would synchronise, and could not be captured in a CUDA graph.
    with torch.inference_mode(False):  # autograd cannot use tensors that were created in inference mode
        both = torch.tensor([mean, std], dtype=dtype, device=device)
        return both[0].view(-1, *[1] * (ndim - 2)), both[1].view(-1, *[1] * (ndim - 2))


class CropOffsets(NamedTuple):
    """Position of the crop of each sample in the padded image, and whether it is mirrored."""

    top: Int[Tensor, " B"]
    left: Int[Tensor, " B"]
    flip: Bool[Tensor, " B"]


def augmentation_offsets(seed: int, epoch: int, indices: Int[Tensor, " B"], *, padding: int, flip: bool = False) -> CropOffsets:
    """Random crop offsets and flips as a pure function of (seed, epoch, sample index).

    SplitMix64 hashes each index with (seed, epoch) in integer arithmetic, which gives the same numbers on every device.

    Args:
        seed: Seed of the run, any integer.
        epoch: Number of completed epochs.
        indices: Positions of the samples in the training set; the offsets are on the same device.
        padding: Offsets are uniform on 0 ... 2 * padding.
        flip: Flip with probability 1/2; otherwise never.
    """
    key = split_mix_int(split_mix_int(seed % WORD) + epoch % WORD)
    word = split_mix(indices.to(torch.int64) * as_int64(GOLDEN) + as_int64(key))
    mask = (1 << _DRAW_BITS) - 1
    span = 2 * padding + 1
    top = ((word & mask) * span) >> _DRAW_BITS
    left = (((word >> _DRAW_BITS) & mask) * span) >> _DRAW_BITS
    mirrored = ((word >> (2 * _DRAW_BITS)) & 1).bool() if flip else torch.zeros_like(word, dtype=torch.bool)
    return CropOffsets(top, left, mirrored)


@dataclass(frozen=True)
class Augmentation:
    """A random crop of the zero-padded raw image (same size as before), then a random horizontal flip.

    Args:
        padding: Number of zero pixels added on every side.
        flip: Mirror with probability 1/2.
    """

    padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise InputError(f"padding must be 0 or more pixels, not {self.padding}")

    def apply(self, x: Num[Tensor, "B C H W"], *, seed: int, epoch: int, indices: Int[Tensor, " B"]) -> Num[Tensor, "B C H W"]:
        """Augment a raw batch; see :func:`augmentation_offsets` for seed, epoch and indices."""
        if x.ndim != 4 or indices.shape != x.shape[:1]:
            shapes = f"{tuple(x.shape)} with indices of shape {tuple(indices.shape)}"
            raise InputError(f"augmentation needs images (B, C, H, W) and one index per image, not {shapes}")
        offsets = augmentation_offsets(seed, epoch, indices.to(x.device), padding=self.padding, flip=self.flip)
        return self.crop(x, offsets)

    def crop(self, x: Num[Tensor, "B C H W"], offsets: CropOffsets) -> Num[Tensor, "B C H W"]:
        """Crop ``x`` at the given offsets."""
        batch, channels, height, width = x.shape
        column = torch.arange(width, device=x.device)
        columns = torch.where(offsets.flip[:, None], width - 1 - column, column) + offsets.left[:, None]
        rows = torch.arange(height, device=x.device) + offsets.top[:, None]
        padded = pad(x, (self.padding,) * 4)
        sample = torch.arange(batch, device=x.device)[:, None, None, None]
        plane = torch.arange(channels, device=x.device)[None, :, None, None]
        return padded[sample, plane, rows[:, None, :, None], columns[:, None, None, :]]
