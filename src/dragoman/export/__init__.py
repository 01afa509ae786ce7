"""Bundles converted to the formats of other engines."""
