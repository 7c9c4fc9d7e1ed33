"""Buffers that a pass in train mode changes, such as the running statistics of BatchNorm, in steps that may not count."""

from __future__ import annotations

import torch
from torch import nn

from ltnode.models import Model
from ltnode.models.fitted import FittedModule
from ltnode.typing import Bool, Tensor


class RunningStatistics:
    """A copy of the buffers of a model's layers in train mode, made before a pass."""

    def __init__(self, model: Model) -> None:
        self._saved: list[tuple[nn.Module, str, Tensor, int, Tensor]] = [
            (module, name, buffer, buffer._version, buffer.clone())
            for module in model.modules()
            # What models fit after a training is no running statistic, and may be large.
            if module.training and not isinstance(module, Model | FittedModule)
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore_unless(self, valid: Bool[Tensor, ""]) -> None:
        """Restore the buffers that the pass has changed, unless a flag on their device holds. Can be captured.

        Raises:
            RuntimeError: A layer has replaced a buffer; a replay of the pass would then begin from the old one again.
        """
        for module, name, buffer, version, before in self._saved:
            if module._buffers[name] is not buffer:
                raise RuntimeError(f"{type(module).__name__} replaces its buffer {name!r} instead of writing into it")
            if buffer._version != version:  # others stay untouched, because something may be computed from them once and kept
                buffer.copy_(torch.where(valid, buffer, before))
