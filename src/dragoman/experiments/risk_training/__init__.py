"""Training on whole outputs: minimum risk (Shen et al. 2016) and expected GLEU (Wu et al. 2016).

Purpose: fine-tuning on the metric instead of the likelihood of single tokens.
Measured: the fine-tuning runs in docs/benchmarks/quality.md.
May go: when no run of the benchmarks gains from it.
"""
