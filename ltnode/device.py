"""Where and how precisely a model computes: the choice of a device, and of the precision of float32 products."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ltnode.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device that a name stands for; under torchrun each process has its own CUDA device.

    Args:
        name: "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: CUDA is asked for and not available.
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
            raise ConfigError(f"device = {str(device)!r}, but there are only {torch.cuda.device_count()} CUDA devices")
        torch.cuda.set_device(device)
    return device


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Run layers in bfloat16 for ``"bf16"``; change nothing otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Compute float32 products on CUDA in full precision, or in TensorFloat-32 for ``"tf32"``; restores the old setting."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
