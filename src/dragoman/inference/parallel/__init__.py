"""Parallel search of batches in threads and worker processes."""
