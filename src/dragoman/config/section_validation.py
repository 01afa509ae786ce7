"""Error messages for recipes: one line with the key, the given value and the limit."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import shorten
from typing import Any

_NO_VALUE = object()


class FieldError(ValueError):
    """Mistake in a document.

    Attributes:
        message: the limit, and what to do
        value: the given value, if the message does not state it
        location: names and list indices from the outermost section to the value
        code: code of the error, if it has one of its own
    """

    def __init__(
        self, message: str, *, value: Any = _NO_VALUE, location: tuple[int | str, ...] = (), code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.value, self.location, self.code = message, value, location, code

    def __str__(self) -> str:
        key = _format_key(self.location)
        if self.value is not _NO_VALUE:
            return f"{key or 'the whole'} = {format_value(self.value)}: {self.message}"
        separator = " " if self.code == "unknown-key" else ": "
        return separator.join(part for part in (key, self.message) if part)


def format_value(value: Any) -> str:
    """Return a value roughly as TOML writes it, cut after 80 characters."""
    try:
        if _is_nested_deep(value):  # Python 3.14 formats a hundred times deeper values than others, in quadratic time
            raise ValueError
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return "a number of thousands of digits, or values nested too deep"
    return text if len(text) <= 80 else text[:77] + "…"


def _is_nested_deep(value: Any) -> bool:
    """Return whether a value stands in 80 collections, one in the other; their text would be cut."""
    level = [value]
    for _ in range(80):
        level = [
            item
            for collection in level
            if isinstance(collection, (dict, list, tuple))
            for item in (collection.values() if isinstance(collection, dict) else collection)
        ]
    return bool(level)


def suggest_name(name: Any, known_names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest known name; empty if none is close."""
    import difflib  # a correct file needs no suggestion

    matches = difflib.get_close_matches(name, list(known_names), n=1, cutoff=0.5) if isinstance(name, str) else ()
    return f"; did you mean {matches[0]}?" if matches else ""


def suggest_or_list_names(name: Any, known_names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest known name, or else lists the known names."""
    known_names = list(known_names)
    return suggest_name(name, known_names) or f"; one of: {shorten(', '.join(known_names), 300, placeholder=' …')}"


def _format_key(location: tuple[int | str, ...]) -> str:
    """Return a location as a dotted key, such as data.curriculum[0].weights."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    return key if key.isprintable() and len(key) <= 80 else format_value(key)
