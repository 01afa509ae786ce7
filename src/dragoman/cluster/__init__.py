"""Work on corpora by the workers of a Ray cluster."""
