"""Translating and parsing with a bundle."""
