"""Back end of machine code that the build of the package compiles."""
