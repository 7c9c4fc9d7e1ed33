"""Kernels in CUDA C++ for any card of compute capability 8.0 or newer, compiled at run time."""
