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
        self._modules = list(model.modules())
        self._tables = [table for m in self._modules for table in (m._parameters, m._buffers, m._modules)]
        self._sizes = [len(table) for table in self._tables]
        self._entries: list[tuple[dict[str, Any], str, Any]] = [
            (table, name, value) for table in self._tables for name, value in table.items()
        ]
        tensors = [value for *_, value in self._entries if isinstance(value, torch.Tensor)]
        self._addresses = [(tensor, tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
        self._attributes = [
            (vars(m), name, value)
            for m in self._modules
            for name, value in vars(m).items()
            if name != "training" and not name.startswith("_") and isinstance(value, _PLAIN)
        ]
        self._solver, self._likelihood = model.solver, model.likelihood

    def unchanged(self, model: LatentTimeODE) -> bool:
        """Whether nothing has been replaced, added or removed."""
        return (
            all(len(table) == size for table, size in zip(self._tables, self._sizes, strict=True))
            and all(table.get(name) is value for table, name, value in self._entries)
            and all(t.data_ptr() == p and t.shape == s and t.dtype == d for t, p, s, d in self._addresses)
            and all(table.get(name) == value for table, name, value in self._attributes)
            and model.solver is self._solver
            and model.likelihood is self._likelihood
        )

    def watched(self) -> bool:
        """Whether a hook watches a layer; a graph would not call it."""
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
            return True
        return any(m._forward_hooks or m._forward_pre_hooks for m in self._modules)
