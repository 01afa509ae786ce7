"""Batch and weight normalization, none, and sublayers without a residual connection or with a scaled one.

Purpose: the ablations of section 3.1, and the systems of Table 2 that were built before layer normalization.
Measured: the ablations in docs/benchmarks/paper.md.
May go: when neither the ablations nor Table 2 are reproduced any more.
"""
