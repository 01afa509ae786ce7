"""Sound as arrays that a model reads: files as samples, and samples as log-mel features. Neither needs PyTorch."""
