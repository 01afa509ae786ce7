"""Scores, their signatures, and whether a difference means anything."""
