"""The fields of several networks of equal architecture, evaluated at once by `torch.func.vmap` over their stacked weights.

Products with weights become batched products, and convolutions become grouped ones, so that a field evaluation of M networks
launches as many kernels as that of one. On a CPU, where launches are cheap, this is slower than the fields one after the other
(1.1 to 1.5 times as much processor time for five networks), so it is used on CUDA only.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from ltnode.typing import Tensor

JointField = Callable[[Tensor, Tensor], Tensor]
"""``(t, h) -> dh/dt`` of M networks at a common time t (0-dim), for states h (M, B, ...)."""
_KNOWN = ("torch.nn.", "ltnode.")
"""Modules from these packages are determined by their tensors and attributes, and can be transformed by vmap."""


def joint_field(fields: Sequence[nn.Module]) -> JointField:
    """Return a function that applies several fields, the n-th to the n-th batch of states, in the fastest way."""
    on_cuda = any(parameter.is_cuda for parameter in fields[0].parameters())
    return vectorised(fields) if on_cuda and alike(fields) else one_by_one(fields)


def one_by_one(fields: Sequence[nn.Module]) -> JointField:
    """Return the joint field of any networks."""
    return lambda t, h: torch.stack([field(t, part) for field, part in zip(fields, h, strict=True)])


def vectorised(fields: Sequence[nn.Module]) -> JointField:
    """Return the joint field of networks for which `alike` holds; gradients flow to their weights."""
    tensors = [{**dict(field.named_parameters()), **dict(field.named_buffers())} for field in fields]
    stacked = {name: torch.stack([own[name] for own in tensors]) for name in tensors[0]}
    # functional_call replaces the tensors of the module that it calls, which another thread may be using.
    shared = {id(tensor): tensor for tensor in itertools.chain(fields[0].parameters(), fields[0].buffers())}
    skeleton = copy.deepcopy(fields[0], shared)

    def one(weights: dict[str, Tensor], t: Tensor, h: Tensor) -> Tensor:
        derivative: Tensor = functional_call(skeleton, weights, (t, h))
        return derivative

    joint = vmap(one, in_dims=(0, None, 0))
    return lambda t, h: joint(stacked, t, h)


def alike(fields: Sequence[nn.Module]) -> bool:
    """Whether the fields differ in the values of their tensors only, and consist of modules that vmap can transform."""
    parts = [list(field.modules()) for field in fields]
    if not all(type(part).__module__.startswith(_KNOWN) for part in parts[0]):
        return False
    descriptions = [[_description(part) for part in modules] for modules in parts]
    return all(description == descriptions[0] for description in descriptions[1:])


def _description(module: nn.Module) -> tuple[Any, ...]:
    """Type, plain attributes, and names, shapes and dtypes of the tensors of a module, without its submodules."""
    plain = {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple | None)}
    tensors = itertools.chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
    return type(module), plain, [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]
