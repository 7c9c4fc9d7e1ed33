"""Fused kernels, each with its formula, its reference and its test; imported only where CUDA and Triton are at hand."""
