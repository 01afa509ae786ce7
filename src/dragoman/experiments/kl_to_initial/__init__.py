"""Regularization towards the initial model in fine-tuning: KL(old‖new) of the outputs (Khayrallah et al. 2018).

Purpose: `dragoman adapt` keeps with it most of what a model could do before.
Measured: the adaptations in docs/benchmarks/quality.md.
May go: when another regularization keeps as much.
"""
