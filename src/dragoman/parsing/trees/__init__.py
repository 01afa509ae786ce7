"""Constituency trees: reading and writing, linearization, repair, constraints on decoding, and baseline parsers."""
