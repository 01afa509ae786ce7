"""Back end of machine code that Numba compiles."""
