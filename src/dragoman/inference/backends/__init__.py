"""The implementations of a model's forward pass for decoding."""
