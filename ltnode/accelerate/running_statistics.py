"""Buffers that a pass in train mode changes, such as the running statistics of BatchNorm, in steps that may not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from ltnode.models import Model
from ltnode.models.fitted import FittedModule
from ltnode.typing import Bool, Tensor


class _Buffer(NamedTuple):
    """A buffer of a layer, by the name under which the layer has it."""

    layer: nn.Module
    name: str
    tensor: Tensor


class RunningStatistics:
    """The buffers of a model's layers that its passes change. The first pass shows which these are."""

    def __init__(self, model: Model) -> None:
        self._watched = [
            _Buffer(layer, name, tensor)
            for layer in model.modules()
            # What models fit after a training is no running statistic, and may be large.
            if layer.training and not isinstance(layer, Model | FittedModule)
            for name, tensor in layer.named_buffers(recurse=False)
        ]

    @contextmanager
    def undone_unless(self) -> Iterator[list[Bool[Tensor, ""]]]:
        """Restore the buffers at the end of the block unless the flag that is appended to the list holds. Can be captured.

        Raises:
            RuntimeError: A layer has replaced a buffer; a replay of the pass would then begin from the old one again.
        """
        before = [(buffer, buffer.tensor._version, buffer.tensor.clone()) for buffer in self._watched]
        valid: list[Tensor] = []
        yield valid
        changed = []
        for buffer, version, saved in before:
            if buffer.layer._buffers[buffer.name] is not buffer.tensor:
                raise RuntimeError(
                    f"{type(buffer.layer).__name__} replaces its buffer {buffer.name!r} instead of writing into it"
                )
            # Others stay untouched, because something may be computed from them once and kept.
            if buffer.tensor._version != version:
                changed.append(buffer)
                buffer.tensor.copy_(torch.where(valid[0], buffer.tensor, saved))
        self._watched = changed
