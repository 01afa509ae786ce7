"""Scheduling of batches over threads and worker processes."""
