"""Trial passes without side effects: buffers and random state are restored afterwards."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ltnode.ode.step import Field


def modules_of(f: Callable[..., Any]) -> list[nn.Module]:
    """The modules whose state a call of f may change: f itself, the owner of a method, or modules that a function refers to."""
    if isinstance(f, nn.Module):
        return [f]
    if isinstance(f, functools.partial):
        return [module for part in (f.func, *f.args, *f.keywords.values()) if callable(part) for module in modules_of(part)]
    owner = getattr(f, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    if not inspect.isfunction(f):
        return []
    try:
        names = inspect.getclosurevars(f)
    except ValueError:  # a variable of the enclosing function is not assigned yet
        return []
    return [x for x in (*names.nonlocals.values(), *names.globals.values()) if isinstance(x, nn.Module)]


def moving_buffers(f: Field) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Buffers that a call of f may change: those of its modules in train mode, for example running statistics."""
    unique = {module: None for root in modules_of(f) for module in root.modules() if module.training}
    return [(module, name, b) for module in unique for name, b in module.named_buffers(recurse=False)]


class Snapshot:
    """A copy of the buffers of a field and of the random state of CPU and device."""

    def __init__(self, f: Field, device: torch.device) -> None:
        self._buffers = [(module, name, buffer, buffer.clone()) for module, name, buffer in moving_buffers(f)]
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Restore buffers and random state."""
        for module, name, buffer, saved in self._buffers:
            # .data bypasses autograd's version counter. BatchNorm in train mode saves its running statistics for the backward
            # pass but does not read them there, so graphs built earlier stay valid.
            buffer.data.copy_(saved)
            module._buffers[name] = buffer  # the module may have replaced the tensor instead of writing into it
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


@contextmanager
def no_trace(f: Field, device: torch.device) -> Iterator[None]:
    """Context for trial passes of f; its buffers and the random state are restored on exit."""
    snapshot = Snapshot(f, device)
    try:
        yield
    finally:
        snapshot.restore()


class Rewind:
    """Context with the buffers and random state of its creation; on exit, those before entering are restored.

    A backward pass that recomputes a step needs the buffers of the first evaluation and must not update them again. The context
    can be entered repeatedly, for example by two backward passes over the same graph.
    """

    def __init__(self, f: Field, device: torch.device) -> None:
        self._f, self._device = f, device
        self._then = Snapshot(f, device)

    def __enter__(self) -> None:
        self._now = Snapshot(self._f, self._device)
        self._then.restore()

    def __exit__(self, *_: object) -> None:
        self._now.restore()
