"""Kernels in Triton, for the widths and precisions that the CUDA kernels do not support."""
