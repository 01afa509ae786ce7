"""Sentences in, results out."""
