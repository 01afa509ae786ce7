"""How fast, how small and how tight dragoman's way from text to batches is, beside its peers: `make bench-data`."""
