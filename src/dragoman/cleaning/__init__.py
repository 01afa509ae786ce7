"""Cleaning of training corpora: filters, duplicates, overlap with evaluation data, statistics and a report with examples."""
