"""CUDA kernels of the package run on a CPU: compiled by the system's C++ compiler with fibres as CUDA threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from ltnode.kernels import nvrtc
from ltnode.kernels.conv_trajectory import Problem

COMPILER = shutil.which("g++") or shutil.which("clang++")
_HERE = Path(__file__).parent
_EXPORT = """
template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void** a, int blocks, int threads, int bytes, std::index_sequence<I...>) {
    emulation::run(blocks, threads, bytes, [&] { kernel(*reinterpret_cast<A*>(a[I])...); });
}
template <typename... A>
static void call(void (*kernel)(A...), void** a, int blocks, int threads, int bytes) {
    call(kernel, a, blocks, threads, bytes, std::index_sequence_for<A...>());
}
extern "C" void emulate(const char* name, int blocks, int threads, int bytes, void** a) {
    if (!std::strcmp(name, "pack_weights")) call(pack_weights, a, blocks, threads, bytes);
    if (!std::strcmp(name, "forward")) call(forward, a, blocks, threads, bytes);
    if (!std::strcmp(name, "backward")) call(backward, a, blocks, threads, bytes);
}
"""


class EmulatedKernels:
    """`ltnode.kernels.nvrtc.Kernels` on CPU tensors."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[nvrtc.Argument]) -> None:
        values = [nvrtc._as_c(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self._library.emulate(name.encode(), blocks, threads, shared_bytes, pointers)


@cache
def _library(side: int, stages: int, save: bool) -> EmulatedKernels:
    assert COMPILER is not None
    folder = Path(mkdtemp(prefix="ltnode-emulation-"))
    source = (Path(nvrtc.__file__).parent / "conv_trajectory.cu").read_text()
    (folder / "kernels.cpp").write_text(f'#include <utility>\n#include "{_HERE / "emulation.h"}"\n{source}\n{_EXPORT}')
    defines = [f"-DSIDE={side}", f"-DSTAGES={stages}", f"-DSAVE={int(save)}"]
    command = [COMPILER, "-std=c++17", "-O2", "-shared", "-fPIC", "-w", *defines, "kernels.cpp", "-o", "kernels.so"]
    subprocess.run(command, cwd=folder, check=True)
    return EmulatedKernels(folder / "kernels.so")


def emulated(problem: Problem, side: int, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.kernels.conv_trajectory_cuda.CudaTrajectory`."""
    assert device.type == "cpu"
    return _library(side, problem.tableau.stages, problem.save)
