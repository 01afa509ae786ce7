"""Export of bundles to the formats of other engines."""
