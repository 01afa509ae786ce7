"""dragoman: the encoder-decoder Transformer of "Attention Is All You Need", from text files to translations.

    import dragoman
    translator = dragoman.load("runs/quickstart/bundle")
    translator.translate(["March 3, 2025"])[0].text

Nothing heavy is imported before one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.config import Recipe, read_recipe
    from dragoman.engine.loading import load
    from dragoman.engine.parse import Parse
    from dragoman.engine.parser import Parser
    from dragoman.engine.translation import Translation
    from dragoman.engine.translator import Translator
    from dragoman.engine.wording import Wording
    from dragoman.errors import DragomanError
    from dragoman.training.finish import train

__version__ = "0.1.0.dev0"
__all__ = ["DragomanError", "Parse", "Parser", "Recipe", "Translation", "Translator", "Wording", "load", "read_recipe", "train"]

_ROOMS = {
    "DragomanError": "dragoman.errors",
    "Parse": "dragoman.engine.parse",
    "Parser": "dragoman.engine.parser",
    "Recipe": "dragoman.config",
    "Translation": "dragoman.engine.translation",
    "Translator": "dragoman.engine.translator",
    "Wording": "dragoman.engine.wording",
    "load": "dragoman.engine.loading",
    "read_recipe": "dragoman.config",
    "train": "dragoman.training.finish",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
