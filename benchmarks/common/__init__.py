"""Environments of other programs, costs of commands, tables and ratios, shared by all benchmarks."""
