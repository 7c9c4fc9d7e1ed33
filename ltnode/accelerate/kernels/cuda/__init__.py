"""Kernels in CUDA C++ for compute capability 8.0 and later, compiled at run time."""
