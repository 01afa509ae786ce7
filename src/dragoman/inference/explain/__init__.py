"""Attention, candidates and beams of one translation or parse."""
