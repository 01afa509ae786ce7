"""Parsing benchmark: cost of the constraint, baselines, and confidence thresholds."""
