"""Sentences in, results out."""

from dragoman.engine.translator import Translation, Translator, load

__all__ = ["Translation", "Translator", "load"]
