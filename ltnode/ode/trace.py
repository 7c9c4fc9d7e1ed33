"""Trial passes that leave no trace: buffers and random state end as they began."""

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
    """The modules whose state a call of f may move: f itself, the one it is a method of, or those a function names."""
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
    except ValueError:  # a variable of the enclosing function that has no value yet
        return []
    return [x for x in (*names.nonlocals.values(), *names.globals.values()) if isinstance(x, nn.Module)]


def moving_buffers(f: Field) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Buffers that a call of f may move: those of its modules in train mode (running statistics, say)."""
    unique = {module: None for root in modules_of(f) for module in root.modules() if module.training}
    return [(module, name, b) for module in unique for name, b in module.named_buffers(recurse=False)]


class Snapshot:
    """The buffers of a field and the random state of CPU and device, to be put back."""

    def __init__(self, f: Field, device: torch.device) -> None:
        self._buffers = [(module, name, buffer, buffer.clone()) for module, name, buffer in moving_buffers(f)]
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Put everything back."""
        for module, name, buffer, saved in self._buffers:
            # Past autograd's version counter: a train-mode BatchNorm saves its running statistics for the backward pass and
            # never reads them there, so a graph built before stays valid.
            buffer.data.copy_(saved)
            module._buffers[name] = buffer  # a module may put a new tensor in its place instead of writing into it
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


@contextmanager
def no_trace(f: Field, device: torch.device) -> Iterator[None]:
    """Run trial passes of f and undo what they did to its buffers and to the random state."""
    snapshot = Snapshot(f, device)
    try:
        yield
    finally:
        snapshot.restore()


class Rewind:
    """Context in which buffers and random state are those of its creation; on leaving, those on entering.

    A backward pass that evaluates a step again needs the first evaluation's buffers and must not move them a second time.
    It may be entered several times, as by two backward passes over one graph.
    """

    def __init__(self, f: Field, device: torch.device) -> None:
        self._f, self._device = f, device
        self._then = Snapshot(f, device)

    def __enter__(self) -> None:
        self._now = Snapshot(self._f, self._device)
        self._then.restore()

    def __exit__(self, *_: object) -> None:
        self._now.restore()
