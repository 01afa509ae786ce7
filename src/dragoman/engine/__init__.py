"""Sentences in, results out."""

from dragoman.engine.translation import Translation
from dragoman.engine.translator import Translator, load
from dragoman.engine.wording import Wording

__all__ = ["Translation", "Translator", "Wording", "load"]
