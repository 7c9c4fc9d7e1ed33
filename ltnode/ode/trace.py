"""Trial passes that leave no trace: buffers and random state end as they began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ltnode.ode.step import Field


class Snapshot:
    """The buffers of a field (running statistics of a BatchNorm, say) and the random state of CPU and device."""

    def __init__(self, f: Field, device: torch.device) -> None:
        stateful = isinstance(f, nn.Module) and f.training
        self._buffers = [(b, b.clone()) for b in f.buffers()] if stateful and isinstance(f, nn.Module) else []
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for buffer, saved in self._buffers:
                buffer.copy_(saved)
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
