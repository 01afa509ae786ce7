"""Restricted self-attention in blocks, whose time and memory grow with n and not with n² (section 4).

Purpose: the row "Self-Attention (restricted)" of Table 1. A model with `model.attention_window` has the same numbers by a mask.
Measured: Table 1 in docs/benchmarks/paper.md.
May go: when Table 1 of the paper is no longer reproduced.
"""
