"""Recurrent and convolutional layers in the place of self-attention: GNMT, Deep-Att, ConvS2S and ByteNet.

Purpose: the systems of Table 2 of the paper.
Measured: the runs of Table 2 in docs/benchmarks/paper.md, at 2.6 million parameters.
May go: when Table 2 of the paper is no longer reproduced.
"""
