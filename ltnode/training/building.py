"""Building the model that a file describes, with no more memory than the weights beside it justify."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ltnode.errors import InputError
from ltnode.models import Model, build_from_spec
from ltnode.typing import Tensor

_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye, torch.arange, torch.linspace)
_LARGEST_INTEGER = 100_000
_SMALLEST_TOLERANCE = 1e-12
_CALLS = 500
_SLACK = 1 << 22
"""Values that a model may hold beyond those in its file: constants, and the default of what the file replaces."""


def build_described(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Model:
    """Build the model that ``description`` describes and that has the weights ``tensors``; the weights are not loaded.

    Raises:
        InputError: The description is not that of a model, or describes one that is much larger than its weights.
    """
    _check_description(description)
    values = sum(tensor.numel() for tensor in tensors.values())
    try:
        with _Budget(4 * values + _SLACK, 8 * len(tensors) + _CALLS):
            return build_from_spec(description)
    except InputError:
        raise
    except Exception as error:  # the description may be anything, and so may be what a constructor makes of it
        raise InputError(f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no reason'}") from error


class _Budget(TorchFunctionMode):
    """Refuses to allocate more than a number of values and of tensors; sizes are computed before anything is allocated."""

    def __init__(self, values: int, tensors: int) -> None:
        super().__init__()
        self._left, self._tensors_left = values, tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FACTORIES:
            shape_only = {name: value for name, value in kwargs.items() if name not in ("generator", "out", "pin_memory")}
            self._left -= func(*args, **{**shape_only, "device": "meta"}).numel()
            self._tensors_left -= 1
            if self._left < 0 or self._tensors_left < 0:
                raise InputError("it describes a model that is much larger than the weights beside it")
        return func(*args, **kwargs)


def _check_description(description: Any) -> None:
    if not isinstance(description, Mapping) or not isinstance(description.get("options"), Mapping):
        raise InputError("its description of the model is not a table with options")
    if description["options"].get("parts") is not None:
        raise InputError("options.parts cannot be described by a file: build the model and pass it to ltnode.load")
    _check_numbers("the description", description)
    solver = description["options"].get("solver")
    if isinstance(solver, Mapping):
        for name in ("rtol", "atol"):
            value = solver.get(name, 1.0)
            if not isinstance(value, int | float) or value < _SMALLEST_TOLERANCE:
                raise InputError(f"solver.{name} must be a number of at least {_SMALLEST_TOLERANCE:g}, not {value!r}")


def _check_numbers(name: str, value: Any) -> None:
    """Require all numbers in nested tables and lists to be finite, and integers to be of sensible size."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(str(key)[:80], inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_numbers(name, inner)
    elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise InputError(f"{name} must be at most {_LARGEST_INTEGER:,}, not {value}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be finite, not {value}")
