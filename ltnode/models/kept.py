"""A value that is kept between calls, because computing it takes longer than a layer of a small network."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The last value of a computation, and what it depends on; copies and pickles of it are empty."""

    def __init__(self) -> None:
        # Replaced as a whole, so that threads never see a part of it. It holds the objects, whose identity nobody else can get.
        self._last: tuple[tuple[object, ...], Hashable, Value] | None = None

    def get(self, of: tuple[object, ...], key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value that was computed for the same objects and an equal key, or compute it."""
        last = self._last
        if last is None or last[1] != key or len(last[0]) != len(of) or not all(map(operator.is_, last[0], of)):
            last = self._last = (of, key, compute())
        return last[2]

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept[Value]:
        return Kept()

    def __reduce__(self) -> tuple[type[Kept[Value]], tuple[()]]:
        return Kept, ()
