"""PyTorch back end with packed weights, for any processor."""
