"""Emulation of captured steps on a CPU: streams do nothing, and graphs run their pass again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ltnode.accelerate import recorder as capture
from ltnode.models import Model
from ltnode.ode.trace import no_trace

Outputs = torch.Tensor | tuple[torch.Tensor, ...]


class Idle:
    """A stream or an event of a device that is never busy."""

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class RunsAgain:
    """A graph whose replay runs its pass and writes into the static outputs, as a CUDA graph does."""

    def __init__(self, run: Callable[[], Outputs], outputs: Outputs) -> None:
        self._run, self._outputs = run, outputs

    def replay(self) -> None:
        for static, value in zip(_several(self._outputs), _several(self._run()), strict=True):
            static.copy_(value)


def floats(parts: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The parts of a loss as numbers."""
    return {name: float(value) for name, value in parts.items()}


def _several(outputs: Outputs) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace recording, and the parts of torch.cuda that captured steps use, by emulations."""

    def record(self: Any, model: Model, run: Any, rehearse: Any = None) -> Any:
        self.enabled.fill_(False)
        try:
            with no_trace(model, torch.device("cpu")):
                outputs = run()
        finally:
            self.enabled.fill_(True)
        return RunsAgain(run, outputs), outputs

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        yield

    empty = torch.empty

    def unpinned(*shape: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return empty(*shape, **options)

    fakes = {"Stream": lambda device, priority=0: Idle(), "Event": Idle, "current_stream": Idle, "stream": on}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(capture.Recorder, "record", record)
