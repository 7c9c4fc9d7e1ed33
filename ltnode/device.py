"""Device and precision of computations."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ltnode.errors import ConfigError

Precision = Literal["fp32", "tf32", "bf16"]
"""float32; float32 with TensorFloat-32 products on CUDA; layers in bfloat16."""


def choose_device(name: str) -> torch.device:
    """Return the device of a name; under torchrun every process gets the CUDA device of its local rank.

    Args:
        name: "auto" (CUDA if there is a device), "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: The name asks for a CUDA device that does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device = {name!r}, but this machine has no CUDA device that torch can use; set device = 'cpu'")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(f"device = {str(device)!r}, but this machine has only {torch.cuda.device_count()} CUDA devices")
        torch.cuda.set_device(device)
    return device


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context that runs layers in bfloat16 for ``"bf16"`` and changes nothing otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Compute float32 products on CUDA in TensorFloat-32 for ``"tf32"``, else in full precision; restore the setting after."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
