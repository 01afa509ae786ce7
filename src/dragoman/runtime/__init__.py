"""Processes, memory allocation and measurements that a machine keeps between runs."""
