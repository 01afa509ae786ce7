"""Training on the risk of whole outputs (Shen et al. 2016), which is 1 − GLEU (Wu et al. 2016).

Purpose: fine-tuning on the metric instead of the likelihood of single tokens.
Measured: 0.45 BLEU more over three seeds (docs/benchmarks/paper.md).
May go: when no run of the benchmarks gains from it.
"""
