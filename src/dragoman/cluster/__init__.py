"""Work on corpora in shards, by the workers of a Ray cluster."""
