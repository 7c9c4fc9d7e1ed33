"""Conversion of user arrays to tensors, and the checks of inputs and targets."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch

from ltnode.errors import InputError
from ltnode.typing import Tensor

Task = Literal["classification", "regression"]
TASKS: tuple[Task, ...] = ("classification", "regression")


def describe(x: Tensor) -> str:
    """Dtype and shape for messages, such as "float32 of shape (3, 2)"."""
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"


def inputs(what: str, value: Any, dtype: torch.dtype) -> Tensor:
    """Images (N, C, H, W) or vectors (N, D) from an array, a tensor or nested lists; ``what`` is the name in messages."""
    x = _tensor(what, value)
    if x.numel() == 0:
        raise InputError(f"{what} must not be empty, but is {describe(x)}")
    if x.ndim == 1:
        raise InputError(f"{what} has shape {tuple(x.shape)}, but vectors need (N, D): use x.reshape(-1, 1) for one feature")
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        raise InputError(f"{what} of shape {tuple(x.shape)} looks channels-last; pass x.transpose(0, 3, 1, 2)")
    if x.ndim not in (2, 3, 4) or x.is_complex():
        raise InputError(f"{what} must be (N, D), (N, H, W) or (N, C, H, W) real numbers, not {describe(x)}")
    if x.ndim >= 3 and x.dtype not in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InputError(f"{what}: images must be uint8, or float in [0, 1], not {describe(x)}")
    x = x[:, None] if x.ndim == 3 else x
    return x if x.dtype == torch.uint8 and x.ndim == 4 else x.to(dtype)


def targets(what: str, value: Any, task: Task, dtype: torch.dtype) -> Tensor:
    """Labels int64 (N,), or regression targets (N,) or (N, K) with K > 1, from an array, a tensor or a list."""
    y = _tensor(what, value)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 and not (y.ndim == 2 and task == "regression" and y.shape[1]):
        several = ", or (N, K) for K targets," if task == "regression" else ","
        raise InputError(f"{what} must have shape (N,), one target per example{several} not {describe(y)}")
    if task == "regression":
        if y.is_complex():
            raise InputError(f"{what} must be real numbers, not {describe(y)}")
        return y.to(dtype)
    if y.is_floating_point() or y.is_complex():
        raise InputError(
            f"{what} is {describe(y)}, but classification needs integer labels; convert them, or use "
            'task="regression" if they are measurements'
        )
    return y.to(torch.int64)


def check_lengths(what: str, x: Tensor, y: Tensor) -> None:
    """Require one target per input."""
    if x.shape[0] != y.shape[0]:
        raise InputError(f"{what}: {x.shape[0]} inputs but {y.shape[0]} targets; pass one target per input")


def check_examples(what: str, x: Tensor, y: Tensor, n_classes: int | None) -> None:
    """Check shapes, dtypes, lengths, finite values and the range of the labels; n_classes is None for regression."""
    if x.ndim not in (2, 4) or (x.ndim == 2 and not x.is_floating_point()):
        raise InputError(f"{what}: inputs must be images (N, C, H, W) or float vectors (N, D), not {describe(x)}")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"{what}: images must be uint8, or float in [0, 1], not {describe(x)}")
    if y.ndim != 1 and not (y.ndim == 2 and n_classes is None and y.shape[1]):
        several = ", or (N, K) for K targets," if n_classes is None else ","
        raise InputError(f"{what}: targets must have shape (N,){several} not {describe(y)}")
    check_lengths(what, x, y)
    if x.numel() == 0:
        raise InputError(f"{what}: no data, the inputs are {describe(x)}")
    if not math.isfinite(x.sum().item() if x.is_floating_point() else 0.0):
        # The sum is cheap but may overflow on finite data, so only the count below decides.
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        if bad:
            raise InputError(f"{what}: NaN or inf in {bad} of {len(x)} inputs; remove or impute them")
    if n_classes is None:
        _check_values(what, y)
    else:
        _check_labels(what, y, n_classes)


def _check_values(what: str, y: Tensor) -> None:
    if not y.is_floating_point():
        raise InputError(f"{what}: regression targets must be floating point, not {describe(y)}")
    if not bool(y.isfinite().all()):
        raise InputError(f"{what}: NaN or inf in {int((~y.isfinite()).sum())} of {len(y)} targets; remove them")


def _check_labels(what: str, y: Tensor, n_classes: int) -> None:
    if y.dtype != torch.int64:
        raise InputError(f"{what}: labels must be int64, not {describe(y)}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= n_classes:
        raise InputError(
            f"{what}: labels range from {low} to {high}, but {n_classes} classes allow 0 to {n_classes - 1}; "
            "renumber them (numpy.unique(y, return_inverse=True)) or pass n_classes"
        )


def _tensor(what: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            raise TypeError(f"dtype {array.dtype}")
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=not array.flags.writeable))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} must be a numeric array ({error}); encode strings with numpy.unique(..., return_inverse=True)"
        ) from error
