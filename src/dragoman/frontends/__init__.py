"""Interface of front ends, and those of sounds: files as samples, and samples as log-mel features. PyTorch is not needed."""
