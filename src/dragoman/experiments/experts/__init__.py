"""Mixtures of experts with noisy top-k gating (Shazeer et al. 2017), and layers without a feed-forward network.

Purpose: the system MoE of Table 2, and the ablation of the feed-forward networks.
Measured: the runs of Table 2 in docs/benchmarks/paper.md, at 2.6 million parameters.
May go: when Table 2 of the paper is no longer reproduced.
"""
