"""What a captured prediction reads: it is valid as long as none of it has been replaced.

A graph reads weights by their address, so that values which are changed in place are seen. Everything else that it depends on is
part of the graph: which tensors there are, where they lie, and the plain attributes of layers, such as the eps of a norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ltnode.models.latent_time import LatentTimeODE

_KNOWN_PACKAGES = ("torch.nn.", "ltnode.")
_PLAIN = (bool, int, float, str, tuple)


def unsupported_reason_model(model: nn.Module) -> str | None:
    """Explain why predictions of a model cannot be captured; None if they can."""
    if type(model) is not LatentTimeODE:
        return f"a {type(model).__name__} is not a network with one solve"
    for name, part in model.named_modules():
        if not f"{type(part).__module__}.".startswith(_KNOWN_PACKAGES) or "forward" in vars(part):
            return f"{name} ({type(part).__name__}) is no layer of torch or ltnode, and may depend on what a graph does not read"
    return None


class ReadParts:
    """The tensors, layers and plain attributes of a model, as they were when its predictions were captured."""

    def __init__(self, model: LatentTimeODE) -> None:
        modules = list(model.modules())
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._tables = [table for m in modules for table in (m._parameters, m._buffers, m._modules)]
        self._sizes = [len(table) for table in self._tables]
        self._entries: list[tuple[dict[str, Any], str, Any]] = [
            (table, name, value) for table in self._tables for name, value in table.items()
        ]
        tensors = [value for *_, value in self._entries if isinstance(value, torch.Tensor)]
        self._pointers = [tensor.data_ptr for tensor in tensors]
        self._addresses = self._pointed()
        self._attributes = [
            (vars(m), name, value)
            for m in modules
            for name, value in vars(m).items()
            if name != "training" and not name.startswith("_") and isinstance(value, _PLAIN)
        ]
        self._values = [value for *_, value in self._attributes]
        self._solver, self._likelihood = model.solver, model.likelihood

    def unchanged(self, model: LatentTimeODE) -> bool:
        """Whether nothing has been replaced, added or removed."""
        if model.solver is not self._solver or model.likelihood is not self._likelihood:
            return False
        if [len(table) for table in self._tables] != self._sizes or self._pointed() != self._addresses:
            return False
        for table, name, value in self._entries:
            if table.get(name) is not value:
                return False
        return [table.get(name) for table, name, _ in self._attributes] == self._values

    def _pointed(self) -> list[int]:
        return [pointer() for pointer in self._pointers]

    def watched(self) -> bool:
        """Whether a hook watches a layer; a graph would not call it."""
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
            return True
        return any(self._hooks)
