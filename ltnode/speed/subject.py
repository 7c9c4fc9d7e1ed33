"""What is measured: a model of `ltnode.build` on inputs in the shape of a data set, or a model around a field of the user's."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn

from ltnode.endtime import GammaTime
from ltnode.errors import InputError, LTNodeError, unknown_name
from ltnode.models import LatentTimeODE, Model, SolverOptions, build, input_spec
from ltnode.ode.step import evaluate
from ltnode.training import TrainConfig, train_preset
from ltnode.typing import Tensor

_CLASSES = 10


@dataclass(frozen=True)
class Subject:
    """A model, its inputs, and the configuration of its training.

    Attributes:
        title: What it is, for the heading of a table.
        model: Builds the model with some solver options, always with the same weights.
        shape: Shape of one input.
        n_classes: Number of classes; None for regression.
        config: Configuration of the training.
    """

    title: str
    model: Callable[[Mapping[str, Any]], Model]
    shape: tuple[int, ...]
    n_classes: int | None
    config: TrainConfig


def named_model(name: str, data: str) -> Subject:
    """A model of `ltnode.build` with the training of its preset, in the shape of a data set."""
    spec = input_spec(data)

    def make(solver: Mapping[str, Any]) -> Model:
        options: dict[str, Any] = {"solver": dict(solver)} if solver else {}
        return build(name, data, seed=0, **options)

    return Subject(f"{name}, {data} shapes", make, tuple(spec.shape), spec.n_classes, train_preset(name, data))


def own_field(place: str, state: tuple[int, ...], optimizer: Literal["sgd", "adam"] = "adam") -> Subject:
    """An LT-NODE around a field of the user's: inputs are states, and the head is a linear classifier.

    Args:
        place: ``module:name`` or ``file.py:name`` of an nn.Module, of a class or function without arguments that makes one, or of
            a function ``f(t, h)``.
        state: Shape of one state.
        optimizer: Optimiser of the training steps.

    Raises:
        InputError: There is no such field, or it does not map states to states.
    """
    prototype = load_field(place)
    _check_field(prototype, place, state)

    def make(solver: Mapping[str, Any]) -> Model:
        torch.manual_seed(0)
        head = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(state).numel(), _CLASSES))
        options = SolverOptions(**solver)
        return LatentTimeODE(nn.Identity(), copy.deepcopy(prototype), head, GammaTime(), "classification", solver=options)

    shape = " x ".join(str(n) for n in state)
    config = TrainConfig(optimizer=optimizer, lr=1e-3)
    return Subject(f"{place}, states of {shape}, {optimizer}", make, state, _CLASSES, config)


def load_field(place: str) -> nn.Module:
    """Import the field ``module:name`` or ``file.py:name``; see `own_field`."""
    module_name, colon, name = place.rpartition(":")
    if not colon or not module_name or not name:
        raise InputError(f"--field must be MODULE:NAME or FILE.py:NAME, for example my_module:Field, not {place!r}")
    module = _import(module_name)
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{module_name}: {unknown_name('name', name, [key for key in vars(module) if not key.startswith('_')])}")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InputError(f"{place} is a {type(found).__name__}, not an nn.Module or a function f(t, h)")
    return _made(found, place)


def _import(name: str) -> ModuleType:
    """Import a module by its name or its file; the current folder counts, as with ``python -m``."""
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"--field: there is no file {name}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # classes look up their module, for example to be copied
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that the user's one imports
        raise InputError(f"--field: there is no module {name!r} in {Path.cwd()} or on the path of Python") from None
    finally:
        sys.path.pop(0)


def _made(found: Callable[..., Any], place: str) -> nn.Module:
    """Make a field with a class or function without arguments, or wrap ``f(t, h)``."""
    parameters = inspect.signature(found).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p.name for p in parameters if p.default is p.empty and p.kind in positional]
    if not required:
        torch.manual_seed(0)
        field = found()
        if not isinstance(field, nn.Module):
            raise InputError(f"{place}() returned a {type(field).__name__}; a field must be an nn.Module")
        return field
    if len(required) == 2 and not inspect.isclass(found):
        return _Function(found)
    kind = "class" if inspect.isclass(found) else "function"
    reason = f"the {kind} {place} needs {', '.join(required)}; name an instance, or a function without arguments that makes one"
    raise InputError(f"{reason}: field = {place.rpartition(':')[2]}(...)")


class _Function(nn.Module):
    """A function ``f(t, h)`` as a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Compute dh/dt."""
        return self._function(t, h)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Function:
        return self


def _check_field(field: nn.Module, place: str, state: tuple[int, ...]) -> None:
    """Evaluate the field once; an error of its own is shown with the shape that caused it."""
    with torch.no_grad():
        try:
            evaluate(copy.deepcopy(field), 0.0, torch.zeros(2, *state))
        except LTNodeError as error:
            raise InputError(f"{place}: {error}") from error
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{place} does not accept states of shape (2, {', '.join(map(str, state))}): {reason}; --state gives the shape"
            ) from error
