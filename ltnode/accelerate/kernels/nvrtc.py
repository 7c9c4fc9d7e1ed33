"""CUDA sources of this folder, compiled at first use by the compiler library that comes with torch, and launched.

Nothing has to be installed: NVRTC is part of torch's CUDA packages and needs no headers. Machine code is kept in the user's
cache folder, under a name that contains all it depends on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from ltnode.typing import Tensor

HOPPER = (9, 0)
"""Compute capability whose warpgroups multiply matrices."""
_FOLDERS = (Path(__file__).parent / "cuda", Path(__file__).parent / "hopper")
Argument = Tensor | int | float | tuple[float, ...] | bytes


@runtime_checkable
class Kernels(Protocol):
    """Compiled functions of one source."""

    def launch(
        self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[Argument], long: bool = False
    ) -> None:
        """Run a function on the current stream.

        Tensors are passed by their address, numbers as 32-bit values, tuples of them as a struct, bytes as the struct they are.

        A ``long`` one fills the card: what waits beside it, a short kernel of another run, gets the next free place.
        """


_PRIORITY = 8
"""CUDA's number of the attribute of a launch."""


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number and 64 bytes of which a priority takes the first four."""

    _fields_: ClassVar = [("id", ctypes.c_int), ("_", ctypes.c_int), ("priority", ctypes.c_int), ("__", ctypes.c_char * 60)]


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_: ClassVar = [
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    ]


class CudaError(RuntimeError):
    """The CUDA driver or compiler refused something."""


def source_text(name: str, first: Sequence[str] = ("common.cuh", "primitives.cuh")) -> str:
    """A source of this folder after what all of them share, with what it includes in place."""

    def text(file: str) -> str:
        own = next(folder / file for folder in _FOLDERS if (folder / file).exists()).read_text("utf-8")
        return re.sub(r'#include "(\w+\.cuh)"\n', lambda found: text(found[1]), own)

    return "".join(map(text, (*first, f"{name}.cu")))


def why_unavailable() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    try:
        _compiler()
        _driver()
    except OSError as error:
        return f"CUDA's run-time compiler or driver is not found ({error})"
    return None


def multiprocessors(device: torch.device, parts: int = 2) -> int:
    """How many a kernel takes that could fill the card: all, or one of so many parts where runs share it (`sharing_card`).

    Where an emulation stands in for a card it has four.
    """
    there = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    return max(there // parts, 1) if _card.shared else there


@dataclass
class _Card:
    shared: bool = False


_card = _Card()
"""Of the process, not of the thread: autograd launches from threads of its own."""


@contextmanager
def sharing_card(runs: int) -> Generator[None]:
    """What is launched or captured meanwhile shares the card with so many runs in all.

    Beside others a kernel takes half of the multiprocessors twice as long: what every block does once, such as loading weights
    or storing its part of a sum, is done half as often.
    """
    before = _card.shared
    _card.shared = runs > 1
    try:
        yield
    finally:
        _card.shared = before


def even_blocks(items: int, most: int) -> int:
    """As few blocks as let the fullest have no more items than with the most blocks there may be."""
    return -(-items // -(-items // most))


def compiled(name: str, defines: tuple[tuple[str, int], ...], device: torch.device) -> CudaKernels:
    """The kernels of a source for given constants on a device; made once per process, machine code once per user."""
    return _compiled(name, defines, torch.cuda.current_device() if device.index is None else device.index)


@cache
def _compiled(name: str, defines: tuple[tuple[str, int], ...], device: int) -> CudaKernels:
    major, minor = torch.cuda.get_device_capability(device)
    own = "a" if (major, minor) == HOPPER else ""  # with what this architecture alone has: products of warpgroups
    options = [f"--gpu-architecture=sm_{major}{minor}{own}", "--std=c++17", *(f"-D{name}={value}" for name, value in defines)]
    with torch.cuda.device(device):
        return CudaKernels(machine_code(source_text(name), options))


def machine_code(source: str, options: Sequence[str], folder: Path | None = None) -> bytes:
    """Compile, or take what an earlier run compiled.

    Args:
        source: CUDA C++ without includes.
        options: Of the compiler.
        folder: Where to keep it; by default the user's cache folder.
    """
    version = (ctypes.c_int(), ctypes.c_int())
    _compiler().nvrtcVersion(*(ctypes.byref(v) for v in version))
    key = "\n".join([source, *options, str([v.value for v in version])])
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ltnode" / "kernels"
    kept = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if kept.exists():
        return kept.read_bytes()
    code = _compile(source, options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(code)
        Path(part.name).replace(kept)
    except OSError:
        pass  # a read-only home costs a compilation in every process, nothing more
    return code


def _compile(source: str, options: Sequence[str]) -> bytes:
    library = _compiler()
    program = ctypes.c_void_p()
    texts = [option.encode() for option in options]

    def check(status: int) -> None:
        if status == 0:
            return
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CudaError(f"{library.nvrtcGetErrorString(status).decode()}: {log.value.decode(errors='replace')[:2000]}")

    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        check(library.nvrtcCompileProgram(program, len(texts), (ctypes.c_char_p * len(texts))(*texts)))
        size = ctypes.c_size_t()
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, code))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


class CudaKernels:
    """Machine code loaded into the current device's context."""

    def __init__(self, code: bytes) -> None:
        self._driver = _driver()
        torch.cuda.current_stream().synchronize()  # makes torch create the context
        self._module = ctypes.c_void_p()
        self._context = ctypes.c_void_p()
        self._check(self._driver.cuCtxGetCurrent(ctypes.byref(self._context)))
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), code))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._shared_bytes: dict[str, int] = {}

    def launch(
        self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[Argument], long: bool = False
    ) -> None:
        """See `Kernels`."""
        values = [_as_c(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        lowest = _LaunchAttribute(id=_PRIORITY, priority=0)
        size = ((blocks, 1, 1), (threads, 1, 1), shared_bytes, torch.cuda.current_stream().cuda_stream)
        launch = _Launch(*size, ctypes.pointer(lowest), int(long))
        self._enter_context()
        function = self._function(name, shared_bytes)
        self._check(self._driver.cuLaunchKernelEx(ctypes.byref(launch), function, pointers, None))

    def _enter_context(self) -> None:
        """A thread of the autograd engine has no context before its first launch by torch."""
        current = ctypes.c_void_p()
        self._check(self._driver.cuCtxGetCurrent(ctypes.byref(current)))
        if current.value is None:
            self._check(self._driver.cuCtxSetCurrent(self._context))

    def _function(self, name: str, shared_bytes: int) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        # The limit is the function's, whoever launches it: it only grows, since captured launches keep their size.
        if shared_bytes > self._shared_bytes.get(name, 0):
            largest_dynamic_shared_size = 8
            self._check(self._driver.cuFuncSetAttribute(self._functions[name], largest_dynamic_shared_size, shared_bytes))
            self._shared_bytes[name] = shared_bytes
        return self._functions[name]

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise CudaError((text.value or b"unknown error").decode())


def _as_c(value: Argument) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, tuple):
        return (ctypes.c_float * len(value))(*value)
    if isinstance(value, bytes):
        return (ctypes.c_char * len(value)).from_buffer_copy(value)
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of the CUDA version that torch was built for: beside torch's other CUDA libraries, or where the system has it."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    beside = [found for path in sys.path for found in Path(path).glob(f"nvidia/*/lib/{name}")]
    for candidate in (*beside, Path(torch.__file__).parent / "lib" / name):
        if candidate.exists():
            return ctypes.CDLL(str(candidate))
    return ctypes.CDLL(name)
