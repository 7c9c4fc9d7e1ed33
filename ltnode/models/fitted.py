"""Modules whose values are fitted after training: buffers that are empty until then."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import nn

from ltnode.models.kept import Kept
from ltnode.ode.replay import traced

Value = TypeVar("Value")


class FittedModule(nn.Module):
    """A module with buffers that are empty until they are fitted, and whose sizes the fit determines.

    A saved model restores them with the sizes in the file; a file without them, such as one of an earlier version, leaves the
    module unfitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._derived: Kept[Any] = Kept()

    def declare(self, *names: str) -> None:
        """Register empty buffers."""
        for name in names:
            self.register_buffer(name, torch.empty(0))

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep fitted values in the memory layout in which a file restores them, so that both compute the same bits."""
        super().__setattr__(name, value.contiguous() if isinstance(value, torch.Tensor) else value)

    def derived(self, compute: Callable[[], Value], key: Hashable = None) -> Value:
        """Return what ``compute`` makes of the buffers alone; kept on a CPU, where it takes as long as a small layer.

        Args:
            compute: Makes the value; there is one such function per module.
            key: What the value depends on apart from the buffers.
        """
        buffers = [buffer for buffer in self._buffers.values() if buffer is not None]
        if buffers[0].device.type != "cpu" or traced(buffers[0]) or any(buffer.is_inference() for buffer in buffers):
            return compute()
        return self._derived.get(tuple(buffers), (key, *[buffer._version for buffer in buffers]), lambda: _without_trace(compute))

    def shape_problem(self) -> str | None:
        """Return what is wrong with the shapes or values of restored buffers; None if they fit together."""
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            assert buffer is not None
            saved = state_dict.setdefault(prefix + name, buffer.new_empty(0))
            if isinstance(saved, torch.Tensor):
                self._buffers[name] = buffer.new_empty(saved.shape, dtype=saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
        problem = self.shape_problem()
        if problem is not None:
            error_messages: list[str] = args[-1]
            error_messages.append(f"{prefix.rstrip('.')}: {problem}")


def _without_trace(compute: Callable[[], Value]) -> Value:
    """Compute a value that may be used with and without gradients, wherever it is first needed."""
    with torch.inference_mode(False), torch.no_grad():
        return compute()
