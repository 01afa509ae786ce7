"""Sentences in, results out."""

from dragoman.engine.loading import load
from dragoman.engine.parse import Parse
from dragoman.engine.parser import Parser
from dragoman.engine.translation import Translation
from dragoman.engine.translator import Translator
from dragoman.engine.wording import Wording

__all__ = ["Parse", "Parser", "Translation", "Translator", "Wording", "load"]
