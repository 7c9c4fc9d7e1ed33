"""Probabilities of several networks for every crop of every training image, computed once for all students and epochs.

CIFAR10 has 162 crops per image. Five students see 1,500 crops of each, so that a table costs a ninth of predicting every time.
A crop is found by a hash of its pixels, because a teacher is given network inputs and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ltnode.data import CropOffsets, Dataset
from ltnode.device import product_precision
from ltnode.models import Model
from promise_stages.predicting import raw_log_probs

_BATCH = 16_384


class SoftLabels:
    """A teacher, as `ltnode.training.engine.Job` takes it: the mean of the members' probabilities.

    Attributes:
        keys: Sorted hashes of the crops, (K,).
        probs: Their probabilities in half precision, (K, C).
        members: The networks, for inputs that are not in the table.
    """

    def __init__(self, keys: Tensor, probs: Tensor, members: Sequence[Model]) -> None:
        self.keys, self.probs, self.members = keys, probs, members

    @classmethod
    def of(cls, members: Sequence[Model], dataset: Dataset, positions: Tensor, file: Path) -> SoftLabels:
        """Compute the table for the training images at some positions, or read it from a file that holds it."""
        device = dataset.train.x.device
        if not file.exists():
            began = time.monotonic()
            images = dataset.train.x[positions.to(device)]
            found = [(hashes(x), mean_probs(members, x).half()) for x in _crops(dataset, images)]
            keys, order = torch.cat([keys for keys, _ in found]).sort()
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save((keys, torch.cat([probs for _, probs in found])[order]), file.with_suffix(".partial"))
            file.with_suffix(".partial").rename(file)
            print(f"soft labels of {len(keys)} crops: {time.monotonic() - began:.1f} s", flush=True)
        return cls(*torch.load(file, map_location=device), members)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        keys = hashes(x)
        places = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        probs = self.probs[places].float()
        missing = self.keys[places] != keys
        if bool(missing.any()):
            probs[missing] = mean_probs(self.members, x[missing]).float()
        return probs / probs.sum(1, keepdim=True)


def hashes(x: Tensor) -> Tensor:
    """64-bit hashes of network inputs: sums of integers, which do not depend on the order of summation."""
    words = x.float().contiguous().flatten(1).view(torch.int32).long()
    generator = torch.Generator().manual_seed(7)
    factors = torch.randint(-(2**63), 2**63 - 1, (words.shape[1],), generator=generator).to(x.device)
    return (words * factors).sum(1)


@torch.no_grad()
def mean_probs(members: Sequence[Model], x: Tensor) -> Tensor:
    """Mean of the members' probabilities before temperature and widening."""
    with product_precision("tf32"):
        return torch.stack([raw_log_probs(member, x, 10).exp() for member in members]).mean(0)


def _crops(dataset: Dataset, images: Tensor) -> Iterator[Tensor]:
    """Network inputs of all crops of the images, in batches."""
    augment = dataset.augment
    assert augment is not None
    span = range(2 * augment.padding + 1)
    for top, left, flip in itertools.product(span, span, (False, True) if augment.flip else (False,)):
        for part in torch.split(images, _BATCH):
            offsets = (torch.full((len(part),), value, device=part.device) for value in (top, left, flip))
            yield dataset.prepare(augment.crop(part, CropOffsets(*offsets)))
