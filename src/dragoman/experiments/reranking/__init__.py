"""Reranking of n-best lists by models of the reverse direction and from right to left (Yee et al. 2019; Liu et al. 2016).

Purpose: the gain of a second model without training.
Measured: 8.43 BLEU, where the length alone gives 7.99 and the beam 7.57 (docs/benchmarks/quality.md).
May go: when ensembles or minimum Bayes risk gain as much at its cost.
"""
