"""Compile CUDA sources with NVRTC and launch their kernels through the CUDA driver.

NVRTC is part of torch's CUDA packages and needs no headers, so users install nothing. Machine code is cached in the user's cache
folder, under a name that contains everything it depends on.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from ltnode.files import cache_folder
from ltnode.typing import Tensor

Argument = Tensor | int | float | tuple[float, ...] | bytes
"""Tensors are passed by address, numbers as 32-bit values, tuples of floats and bytes as structs."""
_FOLDERS = (Path(__file__).parent / "cuda", Path(__file__).parent / "hopper")
_PRIORITY = 8
"""CU_LAUNCH_ATTRIBUTE_PRIORITY."""
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a union of 64 bytes, of which a priority takes the first four."""

    _fields_: ClassVar = [("id", ctypes.c_int), ("_", ctypes.c_int), ("priority", ctypes.c_int), ("__", ctypes.c_char * 60)]


class _LaunchConfig(ctypes.Structure):
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
    """The CUDA driver or NVRTC returned an error."""


def source_text(name: str) -> str:
    """Return a CUDA source with its includes inlined."""

    def text(file: str) -> str:
        path = next(folder / file for folder in _FOLDERS if (folder / file).exists())
        return re.sub(r'#include "(\w+\.cuh)"\n', lambda match: text(match[1]), path.read_text("utf-8"))

    return text(f"{name}.cu")


def unavailable_reason() -> str | None:
    """Return why nothing can be compiled or launched on this machine, or None."""
    try:
        _compiler()
        _driver()
    except OSError as error:
        return f"CUDA's run-time compiler or driver is not found ({error})"
    return None


def machine_code(source: str, options: Sequence[str], folder: Path | None = None) -> bytes:
    """Compile a source, or return the result of an earlier compilation.

    Args:
        source: CUDA C++ without includes.
        options: Options of the compiler.
        folder: Where to cache the result; by default the user's cache folder.
    """
    version = (ctypes.c_int(), ctypes.c_int())
    _compiler().nvrtcVersion(*(ctypes.byref(v) for v in version))
    key = "\n".join([source, *options, str([v.value for v in version])])
    folder = folder or cache_folder() / "kernels"
    cached = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if cached.exists():
        return cached.read_bytes()
    code = _compile(source, options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(code)
        Path(part.name).replace(cached)
    except OSError:
        pass  # with a read-only home directory, every process compiles again
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


class CudaModule:
    """`ltnode.accelerate.kernels.devices.CompiledModule` in the context of the current CUDA device.

    Args:
        code: Machine code of `machine_code`.
    """

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
        """See `CompiledModule.launch`."""
        values = [as_c_value(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        lowest = _LaunchAttribute(id=_PRIORITY, priority=0)
        size = ((blocks, 1, 1), (threads, 1, 1), shared_bytes, torch.cuda.current_stream().cuda_stream)
        config = _LaunchConfig(*size, ctypes.pointer(lowest), int(long))
        self._enter_context()
        function = self._function(name, shared_bytes)
        self._check(self._driver.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))

    def _enter_context(self) -> None:
        """Set the context in threads of the autograd engine, which have none before torch's first launch there."""
        current = ctypes.c_void_p()
        self._check(self._driver.cuCtxGetCurrent(ctypes.byref(current)))
        if current.value is None:
            self._check(self._driver.cuCtxSetCurrent(self._context))

    def _function(self, name: str, shared_bytes: int) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        # The limit belongs to the function and must never shrink: captured launches keep their size.
        if shared_bytes > self._shared_bytes.get(name, 0):
            function = self._functions[name]
            self._check(self._driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))
            self._shared_bytes[name] = shared_bytes
        return self._functions[name]

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise CudaError((text.value or b"unknown error").decode())


def as_c_value(value: Argument) -> Any:
    """Return a kernel argument as a ctypes value; see `Argument`."""
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
    """Load the NVRTC of torch's CUDA version, from torch's CUDA packages or from the system."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    packaged = [match for path in sys.path for match in Path(path).glob(f"nvidia/*/lib/{name}")]
    for candidate in (*packaged, Path(torch.__file__).parent / "lib" / name):
        if candidate.exists():
            return ctypes.CDLL(str(candidate))
    return ctypes.CDLL(name)
