"""Preparation of corpora and construction of training batches."""
