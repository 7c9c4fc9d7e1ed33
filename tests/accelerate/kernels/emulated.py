"""Run the package's CUDA kernels on the CPU: a C++ compiler builds the sources with a fibre for every CUDA thread.

The folder ``emulation`` has its own primitives.cuh and warpgroup.cuh; all other sources are those of the package.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ltnode.accelerate.kernels import devices, nvrtc

COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
_FOLDER = TemporaryDirectory(prefix="ltnode-emulation-")
"""Sources and compiled libraries, deleted when the process ends."""
_KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(')
_EXPORT = """
template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void** a, int blocks, int threads, int bytes, std::index_sequence<I...>) {
    emulation::run(blocks, threads, bytes, [&] { kernel(*reinterpret_cast<A*>(a[I])...); });
}
template <typename... A>
static void call(void (*kernel)(A...), void** a, int blocks, int threads, int bytes) {
    call(kernel, a, blocks, threads, bytes, std::index_sequence_for<A...>());
}
#define KERNEL(kernel) if (!std::strcmp(name, #kernel)) call(kernel, a, blocks, threads, bytes);
extern "C" void emulate(const char* name, int blocks, int threads, int bytes, void** a) { KERNELS }
"""


class EmulatedModule:
    """`CompiledModule` on CPU tensors."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(
        self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[nvrtc.Argument], long: bool = False
    ) -> None:
        values = [nvrtc.as_c_value(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self._library.emulate(name.encode(), blocks, threads, shared_bytes, pointers)


@cache
def _sources() -> Path:
    """Copy the package's CUDA sources into one folder, with the emulation's headers in place of those with instructions."""
    folder = Path(_FOLDER.name) / "sources"
    folder.mkdir()
    package = Path(nvrtc.__file__).parent
    for source in (package / "cuda", package / "hopper", Path(__file__).parent / "emulation"):
        for file in (*source.glob("*.cu"), *source.glob("*.cuh"), *source.glob("*.h")):
            shutil.copy(file, folder)
    return folder


@cache
def _module(name: str, defines: devices.Defines) -> EmulatedModule:
    assert COMPILER is not None
    sources = _sources()
    library = sources.parent / f"{_module.cache_info().misses}.so"
    kernels = " ".join(f"KERNEL({kernel})" for kernel in _KERNEL.findall((sources / f"{name}.cu").read_text("utf-8")))
    program = library.with_suffix(".cpp")
    program.write_text(f'#include "{name}.cu"\n#define KERNELS {kernels}\n{_EXPORT}')
    options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-w", f"-I{sources}", *(f"-D{k}={v}" for k, v in defines)]
    subprocess.run([COMPILER, *options, str(program), "-o", str(library)], check=True)
    return EmulatedModule(library)


@dataclass(frozen=True)
class EmulatedDevice:
    """`Device` on the CPU, with the properties of an H100 except for its number of multiprocessors."""

    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 4
    shared_bytes: int = 227 * 1024

    def unavailable_reason(self) -> str | None:
        return None

    def compile(self, name: str, defines: devices.Defines) -> EmulatedModule:
        return _module(name, defines)


def emulate(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), multiprocessors: int = 4) -> None:
    """Let kernels on CPU tensors run in the emulation."""
    device = EmulatedDevice(capability, multiprocessors)
    monkeypatch.setitem(devices.DEVICES, "cpu", lambda _: device)
