"""CUDA back end with static buffers and CUDA graphs."""
