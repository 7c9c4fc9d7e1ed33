"""CUDA kernels of the package run on a CPU: compiled by the system's C++ compiler with fibres as CUDA threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ltnode.accelerate.kernels import norm_relu, nvrtc
from ltnode.accelerate.kernels.conv_trajectory import Problem
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.cuda import masked_sgd, patch_norm

COMPILER = shutil.which("g++") or shutil.which("clang++")
_HERE = Path(__file__).parent
_FOLDER = TemporaryDirectory(prefix="ltnode-emulation-")
"""Of what is compiled, until the process ends."""
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


class EmulatedKernels:
    """`ltnode.accelerate.kernels.nvrtc.Kernels` on CPU tensors."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(
        self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[nvrtc.Argument], long: bool = False
    ) -> None:
        values = [nvrtc._as_c(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self._library.emulate(name.encode(), blocks, threads, shared_bytes, pointers)


@cache
def _library(name: str, kernels: tuple[str, ...], defines: tuple[str, ...] = ()) -> EmulatedKernels:
    assert COMPILER is not None
    folder = Path(_FOLDER.name) / str(_library.cache_info().misses)
    folder.mkdir()
    source = nvrtc.source_text(name, first=["common.cuh"])
    listed = f"#define KERNELS {' '.join(f'KERNEL({kernel})' for kernel in kernels)}"
    (folder / "kernels.cpp").write_text(f'#include <utility>\n#include "{_HERE / "emulation.h"}"\n{source}\n{listed}\n{_EXPORT}')
    command = [COMPILER, "-std=c++17", "-O2", "-shared", "-fPIC", "-w", *defines, "kernels.cpp", "-o", "kernels.so"]
    subprocess.run(command, cwd=folder, check=True)
    return EmulatedKernels(folder / "kernels.so")


def emulated(problem: Problem, side: int, warpgroups: bool, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.cuda.conv_trajectory.CudaTrajectory`."""
    assert device.type == "cpu"
    defines = tuple(f"-D{name}={value}" for name, value in conv_trajectory_cuda.defines(problem, side, warpgroups))
    return _library("conv_trajectory", ("pack_weights", "forward", "backward"), defines)


def emulated_gradients(side: int, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.hopper.conv_gradients`."""
    assert device.type == "cpu"
    return _library("conv_gradients", ("field_gradients", "add_parts"), (f"-DSIDE={side}",))


def emulated_posterior(device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.cuda.gamma_posterior`."""
    assert device.type == "cpu"
    return _library("gamma_posterior", ("posterior_forward", "posterior_backward"))


def emulated_sgd(device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernel of `ltnode.accelerate.kernels.cuda.masked_sgd`."""
    assert device.type == "cpu"
    return _library("masked_sgd", ("masked_sgd",), tuple(f"-D{name}={value}" for name, value in masked_sgd.defines()))


def emulated_head(sizes: tuple[tuple[str, int], ...]) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.interpolated_head`."""
    return _library("interpolated_head", ("head_forward", "head_backward"), tuple(f"-D{name}={value}" for name, value in sizes))


def emulated_patch_norm(shape: tuple[int, ...], size: int, outputs: int, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.cuda.patch_norm`."""
    assert device.type == "cpu"
    defines = tuple(f"-D{name}={value}" for name, value in patch_norm.defines(shape, size, outputs))
    return _library("patch_norm", ("patch_norm_forward", "patch_norm_backward"), defines)


def emulated_norm_relu(x: torch.Tensor, biased: bool) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.norm_relu`."""
    sizes = norm_relu._cuda_sizes(x.shape[2] * x.shape[3], x.shape[1], biased)
    return _library("norm_relu", ("norm_relu_forward", "norm_relu_backward"), tuple(f"-D{name}={value}" for name, value in sizes))


def emulated_halving(side: int, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.hopper.halving_conv`."""
    assert device.type == "cpu"
    return _library("halving_conv", ("pack_kernel", "halving_forward", "halving_backward"), (f"-DIN={side}",))


def emulated_stem(side: int, channels: int, size: int, device: torch.device) -> EmulatedKernels:
    """Stands in for the compiled kernels of `ltnode.accelerate.kernels.hopper.stem_gradients`."""
    assert device.type == "cpu"
    return _library("stem_gradients", ("stem_gradients",), (f"-DIN={side}", f"-DCHANNELS={channels}", f"-DSIZE={size}"))
