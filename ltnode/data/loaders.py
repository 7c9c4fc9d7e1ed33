"""Data sets from what gives (x, y) in batches: a DataLoader of torch, or any iterable, without holding all inputs in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from ltnode.data.arrays import Task
from ltnode.data.dataset import Dataset, Split
from ltnode.data.streaming import StreamedTensor
from ltnode.errors import InputError
from ltnode.typing import Tensor

_PART = 256
"""Number of items that are read at once to collect their targets."""


class ItemSource:
    """Inputs of a map-style data set of torch, collated as its DataLoader does; a `ltnode.data.streaming.Source`.

    Items are asked for each time they are used, so that random changes in the data set differ between epochs.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._items: Any = loader.dataset
        self._collate = loader.collate_fn
        first, _ = self._batch([0])
        self.shape, self.dtype = tuple(first.shape[1:]), first.dtype

    def __len__(self) -> int:
        return len(self._items)

    def read(self, positions: Sequence[int]) -> Tensor:
        """Read the inputs of some items."""
        if not len(positions):
            return torch.empty(0, *self.shape, dtype=self.dtype)
        return self._batch(positions)[0]

    @cached_property
    def targets(self) -> Tensor:
        """The targets of all items; they are read item by item if the data set does not have them as ``targets``."""
        known = getattr(self._items, "targets", None)
        if known is not None and len(known) == len(self):
            return torch.as_tensor(known)
        parts = [range(start, min(start + _PART, len(self))) for start in range(0, len(self), _PART)]
        return torch.cat([self._batch(part)[1] for part in parts])

    def _batch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        return checked_batch(self._collate([self._items[position] for position in positions]))


def from_batches(batches: Iterable[Any], task: Task) -> Dataset:
    """Make a data set of the batches (x, y) of a DataLoader or of another iterable; nothing is normalised.

    The items of a DataLoader with a map-style data set are read while training, in the order and in the batches of the training
    configuration. Another iterable is read once, from beginning to end, and kept in a temporary file on disk.

    Args:
        batches: Yields pairs of a batch of inputs (B, ...) and their targets (B,), tensors or arrays.
        task: "classification" or "regression".

    Raises:
        InputError: There are no batches, or something else than pairs.
    """
    if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
        source = ItemSource(batches)
        x: Tensor = StreamedTensor(source)
        y = source.targets
    else:
        x, y = _spooled(batches)
    y = y.reshape(-1).long() if task == "classification" else y.float()
    split = Split(x, y)
    n_classes = int(y.max()) + 1 if task == "classification" else None
    return Dataset("batches", task, split, split, n_classes=None if n_classes is None else max(2, n_classes), source="arrays")


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a batch as tensors.

    Raises:
        InputError: It is not a pair of a batch of inputs and as many targets.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError(f"every batch must be a pair (x, y) of inputs and targets, not {type(batch).__name__}")
    try:
        x, y = (part if isinstance(part, Tensor) else torch.as_tensor(np.asarray(part)) for part in batch)
    except (TypeError, ValueError) as error:
        raise InputError(f"every batch must be a pair (x, y) of tensors or arrays of numbers ({error})") from error
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise InputError(f"a batch must have inputs (B, ...) and B targets, not {tuple(x.shape)} and {tuple(y.shape)}")
    return x, y


def _spooled(batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Write the inputs of all batches to a temporary file, which is deleted when nothing uses it; return them memory-mapped."""
    targets: list[Tensor] = []
    shape: tuple[int, ...] = ()
    dtype = torch.float32
    folder = tempfile.TemporaryDirectory(prefix="ltnode-batches-", ignore_cleanup_errors=True)
    path = Path(folder.name) / "inputs"
    with path.open("wb") as file:
        for batch in batches:
            x, y = checked_batch(batch)
            if not targets:
                shape, dtype = tuple(x.shape[1:]), x.dtype
            if (tuple(x.shape[1:]), x.dtype) != (shape, dtype):
                raise InputError(
                    f"all inputs must have the shape {shape} and dtype {dtype}, not {tuple(x.shape[1:])} and {x.dtype}"
                )
            file.write(x.detach().cpu().contiguous().numpy().tobytes())
            targets.append(y.detach().cpu().clone())
    if not targets:
        raise InputError("the iterable has no batches: an iterator that was already used is empty, pass a new one")
    y = torch.cat(targets)
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    mapped = torch.from_numpy(np.memmap(path, dtype=kind, mode="r+", shape=(len(y), *shape)))
    folder.cleanup()  # the open map keeps the content; the name is gone, whatever happens to this process
    return mapped, y
