"""Benchmark of the commands on a Ray cluster, and a simulated schedule of many workers."""
