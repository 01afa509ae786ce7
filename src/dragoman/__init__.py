"""dragoman: the encoder-decoder Transformer of "Attention Is All You Need", from text files to translations.

    import dragoman
    translator = dragoman.load("runs/quickstart/bundle", task="translation")
    translator.translate(["March 3, 2025"])[0].text

Importing dragoman is fast: a name imports its module at first use.
"""

from __future__ import annotations

import os

from dragoman.version import __version__

# The threads of NumPy's OpenBLAS wait for work in a loop, at first for 60 ms of a core. With this they sleep after 2^16 cycles.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

TYPE_CHECKING = False  # type checkers take it as true; the import of typing takes longer than the rest
if TYPE_CHECKING:
    from typing import Any

    from dragoman.client import AsyncClient, Client
    from dragoman.config import Recipe, read_recipe
    from dragoman.conversion.converter import ConversionResult, convert
    from dragoman.documents.translate_file import FileOptions, FileTranslation, translate_file
    from dragoman.errors import DragomanError
    from dragoman.inference.frames import translate_frame
    from dragoman.inference.load import load, load_pivot
    from dragoman.inference.pivot import PivotTranslator
    from dragoman.inference.translation_constraints import TranslationConstraints
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator
    from dragoman.parsing.parse_result import Parse
    from dragoman.parsing.parser import Parser
    from dragoman.training.run import train
    from dragoman.transcription.transcriber import Transcriber
    from dragoman.transcription.transcript import Transcript

__all__ = [
    "AsyncClient",
    "Client",
    "ConversionResult",
    "DragomanError",
    "FileOptions",
    "FileTranslation",
    "Parse",
    "Parser",
    "PivotTranslator",
    "Recipe",
    "Transcriber",
    "Transcript",
    "Translation",
    "TranslationConstraints",
    "Translator",
    "__version__",
    "convert",
    "load",
    "load_pivot",
    "read_recipe",
    "train",
    "translate_file",
    "translate_frame",
]

_MODULES = {
    "AsyncClient": "dragoman.client",
    "Client": "dragoman.client",
    "ConversionResult": "dragoman.conversion.converter",
    "DragomanError": "dragoman.errors",
    "FileOptions": "dragoman.documents.translate_file",
    "FileTranslation": "dragoman.documents.translate_file",
    "Parse": "dragoman.parsing.parse_result",
    "Parser": "dragoman.parsing.parser",
    "PivotTranslator": "dragoman.inference.pivot",
    "Recipe": "dragoman.config",
    "Transcriber": "dragoman.transcription.transcriber",
    "Transcript": "dragoman.transcription.transcript",
    "Translation": "dragoman.inference.translation_result",
    "TranslationConstraints": "dragoman.inference.translation_constraints",
    "Translator": "dragoman.inference.translator",
    "convert": "dragoman.conversion.converter",
    "load": "dragoman.inference.load",
    "load_pivot": "dragoman.inference.load",
    "read_recipe": "dragoman.config",
    "train": "dragoman.training.run",
    "translate_file": "dragoman.documents.translate_file",
    "translate_frame": "dragoman.inference.frames",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
