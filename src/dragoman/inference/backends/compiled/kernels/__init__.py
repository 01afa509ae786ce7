"""Kernels that Numba compiles to machine code."""
