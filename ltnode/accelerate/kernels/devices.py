"""The devices that run the CUDA kernels: their compiler, their size, and the share of it that a kernel takes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch

from ltnode.accelerate.kernels import nvrtc

HOPPER = (9, 0)
"""Compute capability with warpgroup MMA (wgmma)."""
Argument = nvrtc.Argument
"""Argument of a kernel."""
Defines = tuple[tuple[str, int], ...]
"""Names and values of the constants that a CUDA source is compiled with."""


@runtime_checkable
class CompiledModule(Protocol):
    """The compiled kernels of one CUDA source."""

    def launch(
        self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[Argument], long: bool = False
    ) -> None:
        """Launch a kernel on the current stream.

        A ``long`` kernel fills the device and has the lowest priority: a short kernel of a concurrent run gets the next free
        multiprocessor.
        """


@runtime_checkable
class Device(Protocol):
    """What the kernels need to know about a device."""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors."""

    @property
    def shared_bytes(self) -> int:
        """Largest shared memory of a block."""

    def unavailable_reason(self) -> str | None:
        """Return why the device cannot compile and launch kernels, or None."""

    def compile(self, name: str, defines: Defines) -> CompiledModule:
        """Return the kernels of a source for given constants; every combination is compiled once."""


@dataclass(frozen=True)
class CudaDevice:
    """`Device` of CUDA, by its index."""

    index: int
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int

    def unavailable_reason(self) -> str | None:
        """See `Device.unavailable_reason`."""
        return nvrtc.unavailable_reason()

    def compile(self, name: str, defines: Defines) -> CompiledModule:
        """See `Device.compile`."""
        return _cuda_module(self, name, defines)


@cache
def _cuda_module(device: CudaDevice, name: str, defines: Defines) -> CompiledModule:
    major, minor = device.capability
    suffix = "a" if (major, minor) == HOPPER else ""  # sm_90a has wgmma
    options = [f"--gpu-architecture=sm_{major}{minor}{suffix}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines)]
    with torch.cuda.device(device.index):
        return nvrtc.CudaModule(nvrtc.machine_code(nvrtc.source_text(name), options))


@cache
def _cuda_device(index: int) -> CudaDevice:
    properties: Any = torch.cuda.get_device_properties(index)
    sizes = (properties.multi_processor_count, properties.shared_memory_per_block_optin)
    return CudaDevice(index, (properties.major, properties.minor), *sizes)


DEVICES: dict[str, Callable[[torch.device], Device]] = {
    "cuda": lambda device: _cuda_device(torch.cuda.current_device() if device.index is None else device.index)
}
"""Kinds of torch devices that run the kernels."""


def unsupported_reason(device: torch.device, capability: tuple[int, int] = (0, 0), shared_bytes: int = 0) -> str | None:
    """Return why a device cannot run a kernel, or None.

    Args:
        device: Device of the kernel's tensors.
        capability: Smallest compute capability of the kernel.
        shared_bytes: Shared memory of its blocks.
    """
    if device.type not in DEVICES:
        return f"the kernels run on CUDA, and the tensors are on {device.type}"
    found = DEVICES[device.type](device)
    if found.capability < capability:
        return f"the kernel needs compute capability {capability}, and the device has {found.capability}"
    if found.shared_bytes < shared_bytes:
        return f"the kernel needs {shared_bytes} bytes of shared memory per block, and the device has {found.shared_bytes}"
    return found.unavailable_reason()


def has_warpgroup_mma(device: torch.device) -> bool:
    """Return whether a supported device has wgmma instructions."""
    return DEVICES[device.type](device).capability == HOPPER


def compiled(name: str, defines: Defines, device: torch.device) -> CompiledModule:
    """Return the kernels of a source for given constants on a device."""
    return DEVICES[device.type](device).compile(name, defines)


@dataclass
class _Sharing:
    active: bool = False


_sharing = _Sharing()
"""State of the process, not of the thread: autograd launches kernels from its own threads."""


def multiprocessors(device: torch.device, parts: int = 2) -> int:
    """Return the number of multiprocessors for a long kernel: all, or one of ``parts`` while `sharing_device` is active."""
    count = DEVICES[device.type](device).multiprocessors
    return max(count // parts, 1) if _sharing.active else count


@contextmanager
def sharing_device(runs: int) -> Generator[None]:
    """Launch and capture kernels for a device that several runs share.

    Each long kernel then takes half of the multiprocessors for twice as long. Work that every block does once, such as loading
    weights or storing partial sums, is done half as often.

    Args:
        runs: Number of concurrent runs; 1 has no effect.
    """
    before = _sharing.active
    _sharing.active = runs > 1
    try:
        yield
    finally:
        _sharing.active = before


def even_blocks(items: int, limit: int) -> int:
    """Return the smallest number of blocks whose largest share of the items is no larger than with ``limit`` blocks."""
    return -(-items // -(-items // limit))
