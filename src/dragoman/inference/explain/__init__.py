"""Explanations of one translation or parse: attention, candidate tokens and the beam."""
