"""Commands that reproduce the paper."""
