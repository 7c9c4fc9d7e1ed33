"""Fused GPU kernels, each with its formula, its reference and its test."""
