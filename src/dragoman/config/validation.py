"""A refusal: what is wrong with a recipe, in one line that holds the key, what was given and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from textwrap import shorten
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dragoman.errors import RecipeError

SectionT = TypeVar("SectionT", bound=BaseModel)

Location = tuple[int | str, ...]

_PLAINLY = {
    "bool_type": "Input should be true or false",
    "int_type": "Input should be a whole number",
    "float_type": "Input should be a number",
    "string_type": "Input should be a text, in quotes",
    "list_type": "Input should be a list",
    "dict_type": "Input should be a section of key = value",
    "model_type": "Input should be a section of key = value",
}


def checked(section: type[SectionT], document: Mapping[str, Any], where: str) -> SectionT:
    """The section that a document holds. Raises RecipeError with the first thing that is wrong."""
    try:
        return section.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        location, kind, message = first["loc"], first["type"], first["msg"]
        if kind == "value_error":
            message = message.removeprefix("Value error, ")
        message = _PLAINLY.get(kind, message.replace(" after validation", ""))
        if location[-1:] == ("[key]",):  # so pydantic marks what is wrong with a key rather than with its value
            told = f"{_key(location[:-2])}: {show(location[-2])} is not a name: {message}"
        elif kind == "extra_forbidden":
            told = f"{_key(location)} is not a key{instead(location[-1], _keys_beside(section, location))}"
        elif kind == "value_error":
            told = ": ".join(part for part in (_key(location), message) if part)
        else:
            close = nearest(first["input"], re.findall(r"'([^']*)'", message)) if kind == "literal_error" else ""
            told = f"{_key(location) or 'the whole'} = {show(first['input'])}: {message}{close}"
        raise RecipeError(f"{where}: {told}") from None


def show(value: Any) -> str:
    """A value as TOML writes it, as far as Python does the same, and not longer than a line bears."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "…"


def nearest(name: Any, known: Iterable[str]) -> str:
    """The end of a refusal: which of the known names was meant; nothing where none is like it."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def instead(name: Any, known: Iterable[str]) -> str:
    """The end of a refusal: which of the known names was meant, or what they are."""
    known = list(known)
    return nearest(name, known) or f"; one of: {shorten(', '.join(known), 300, placeholder=' …')}"


def _key(location: Location) -> str:
    """As a recipe writes it: data.curriculum[0].weights."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    return key if key.isprintable() and len(key) <= 80 else show(key)


def _keys_beside(section: type[BaseModel], location: Location) -> list[str]:
    """The keys that the section of a misspelt one does have."""
    within: Any = section
    for part in location[:-1]:
        if isinstance(within, type) and issubclass(within, BaseModel):
            within = within.model_fields[str(part)].annotation
            within = next((kind for kind in get_args(within) if NoneType in get_args(within) and kind is not NoneType), within)
        else:  # a list of sections, or sections by name
            within = get_args(within)[-1]
    return list(within.model_fields)
