"""Scores of attention other than the paper's q·k / √d_k: q·k, additive and multiplicative ones.

Purpose: the comparison of section 3.2.1, and the attention of GNMT.
Measured: the ablations in docs/benchmarks/paper.md.
May go: when neither the ablations nor Table 2 are reproduced any more.
"""
