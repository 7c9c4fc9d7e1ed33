"""Kernels in CUDA C++ that need the warpgroup instructions of compute capability 9.0 (H100, H200)."""
