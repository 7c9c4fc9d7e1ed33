"""Kernels in Triton, for the shapes and precisions that the CUDA kernels do not serve."""
