"""Metrics, the significance of differences, and bracketing scores."""
