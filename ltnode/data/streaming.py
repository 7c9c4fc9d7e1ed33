"""Inputs that are read while they are used: a tensor of any length that never lies in memory as a whole.

A `StreamedTensor` has the shape and dtype of a batch of inputs, and knows where they come from. Taking some of its rows, in any
order, reads nothing. Any other operation reads its rows first, so that code for tensors works unchanged; code that is to work in
bounded memory splits the tensor, and passes over the parts with `read_ahead`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch

from ltnode.typing import Tensor

_READ_AHEAD = 2
"""Number of parts that are read while another one is in use."""
_LARGEST_PART = 64 << 20
"""Bytes of one part of a large set of inputs, in float32."""
_aten = torch.ops.aten


@runtime_checkable
class Source(Protocol):
    """Where inputs come from; `read` may be called from any thread, and is a function of the positions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the inputs."""
        ...

    def __len__(self) -> int:
        """Return the number of inputs."""
        ...

    def read(self, positions: Sequence[int]) -> Tensor:
        """Read the inputs at some positions, on the CPU."""
        ...


class StreamedTensor(torch.Tensor):
    """Some inputs of a source, each read when an operation needs its values.

    Args:
        source: Where the inputs come from.
        positions: Positions (N,) in the source; None for all of them.
        change: Applied to every batch of inputs that is read, such as a normalisation; None for no change.
        dtype: Dtype of the changed inputs.
        device: Device of the changed inputs.
    """

    source: Source
    positions: Tensor
    change: Callable[[Tensor], Tensor] | None

    @staticmethod
    def __new__(
        cls,
        source: Source,
        positions: Tensor | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> StreamedTensor:
        """Make a tensor without values."""
        chosen = torch.arange(len(source)) if positions is None else positions
        made: StreamedTensor = torch.Tensor._make_wrapper_subclass(
            cls, (len(chosen), *source.shape), dtype=dtype or source.dtype, device=device or torch.device("cpu")
        )
        made.source, made.positions, made.change = source, chosen, change
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StreamedTensor({tuple(self.shape)}, {self.dtype}, from {type(self.source).__name__})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Take rows without reading them, compute a mean part by part, and read the inputs for anything else."""
        x = args[0] if args else None
        if isinstance(x, StreamedTensor):
            if func in (_aten.detach.default, _aten.alias.default):
                return x.rows(x.positions)
            if func is _aten.slice.Tensor and (len(args) < 2 or args[1] == 0):
                bounds = [*args[2:], *(None, None, 1)[len(args[2:]) :]]
                return x.rows(x.positions[slice(*bounds)])
            if func is _aten.split.Tensor and (len(args) < 3 or args[2] == 0):
                return [x.rows(part) for part in x.positions.split(args[1])]
            if func is _aten.index.Tensor and len(args[1]) == 1:
                return x.rows(x.positions[args[1][0].cpu()])
            if func is _aten.select.int and args[1] == 0:
                return x.rows(x.positions[args[2]][None]).read()[0]
            if func is _aten.mean.dim and list(args[1]) == [0]:
                return _mean(x)
        return func(*_read_all(args), **{key: _read_all([value])[0] for key, value in (kwargs or {}).items()})

    def rows(self, positions: Tensor) -> StreamedTensor:
        """Return the inputs at other positions of the source."""
        return StreamedTensor(self.source, positions, self.change, self.dtype, self.device)

    def changed(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> StreamedTensor:
        """Return the inputs with a change, such as a normalisation, which is made when they are read."""
        return StreamedTensor(self.source, self.positions, change, dtype, device)

    def read(self) -> Tensor:
        """Return the inputs as a plain tensor."""
        raw = self.source.read(self.positions.tolist())
        return raw if self.change is None else self.change(raw)


def _read_all(values: Iterable[Any]) -> list[Any]:
    return [
        value.read()
        if isinstance(value, StreamedTensor)
        else type(value)(_read_all(value))
        if isinstance(value, list | tuple)
        else value
        for value in values
    ]


def _mean(x: StreamedTensor) -> Tensor:
    total = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
    for part in read_ahead(x.split(part_size(x, len(x)))):
        total += part.to(torch.float64).sum(0)
    return (total / len(x)).to(x.dtype)


def read_ahead(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield parts of inputs as plain tensors, and read the next ones in the background while one is in use.

    Parts that are plain tensors are passed on as they are. At most two further parts are in memory.
    """
    waiting: deque[tuple[Tensor, Future[Tensor] | None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ltnode-read") as reader:
        try:
            for part in parts:
                # A change may use the device and the random state of torch, so only the source is read in the background.
                if isinstance(part, StreamedTensor):
                    waiting.append((part, reader.submit(part.source.read, part.positions.tolist())))
                else:
                    waiting.append((part, None))
                if len(waiting) > _READ_AHEAD or not isinstance(part, StreamedTensor):
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            for _, reading in waiting:
                if reading is not None:
                    reading.cancel()


def _first(waiting: deque[tuple[Tensor, Future[Tensor] | None]]) -> Tensor:
    part, reading = waiting.popleft()
    if not isinstance(part, StreamedTensor) or reading is None:
        return part
    return reading.result() if part.change is None else part.change(reading.result())


def in_parts(x: Tensor, largest: int) -> Iterator[Tensor]:
    """Yield inputs in parts of at most ``largest``, of fewer if they are large, as plain tensors; see `read_ahead`."""
    return read_ahead(torch.split(x, part_size(x, largest)))


def resident(x: Tensor) -> Tensor:
    """Return inputs as a plain tensor; those that are read while they are used are read."""
    return x.read() if isinstance(x, StreamedTensor) else x


def mapped(change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a change that keeps shape and dtype, such as a rotation: at once, or to inputs that are read when they are read."""
    return x.changed(change, x.dtype, x.device) if isinstance(x, StreamedTensor) else change(x)


def part_size(x: Tensor, largest: int) -> int:
    """Return how many inputs form a part: ``largest``, or fewer where they would exceed 64 MiB in float32."""
    values = max(1, x.shape[1:].numel())
    return max(1, min(largest, _LARGEST_PART // (4 * values)))
