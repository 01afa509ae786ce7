"""Parsing, measured: what the constraint costs, what baselines are worth, and how well a parser knows what it knows."""
