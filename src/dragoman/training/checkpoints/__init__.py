"""Checkpoints on disk and the policy that decides when to save them."""
