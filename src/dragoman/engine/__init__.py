"""Sentences in, results out.

A name's room is imported when the name is used, so that who translates waits for nothing that only parsing needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.engine.loading import load
    from dragoman.engine.parse import Parse
    from dragoman.engine.parser import Parser
    from dragoman.engine.translation import Translation
    from dragoman.engine.translator import Translator
    from dragoman.engine.wording import Wording

__all__ = ["Parse", "Parser", "Translation", "Translator", "Wording", "load"]

_ROOMS = {
    "Parse": "dragoman.engine.parse",
    "Parser": "dragoman.engine.parser",
    "Translation": "dragoman.engine.translation",
    "Translator": "dragoman.engine.translator",
    "Wording": "dragoman.engine.wording",
    "load": "dragoman.engine.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'dragoman.engine' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)
