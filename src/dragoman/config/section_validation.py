"""Error messages for recipes: one line with the key, the given value and the limit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from textwrap import shorten
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dragoman.config.extension import ExtensibleSection, get_extension_defaults
from dragoman.errors import RecipeError

SectionT = TypeVar("SectionT", bound=BaseModel)

Location = tuple[int | str, ...]

# Message for a value of a wrong type, by pydantic's name of the error.
_TYPE_MESSAGES = {
    "bool_type": "needs true or false, without quotes",
    "int_type": "needs a whole number, such as 100",
    "float_type": "needs a number, such as 0.1",
    "string_type": "needs a text, in quotes, such as 'text'",
    "list_type": "needs a list, such as ['a', 'b']",
    "name_or_list": "needs a text, in quotes, or a list of them, such as 'train.en'",
    "dict_type": "needs a section of key = value lines, below its name in brackets",
    "model_type": "needs a section of key = value lines, below its name in brackets",
}


def validate_section(section: type[SectionT], document: Mapping[str, Any], where: str) -> SectionT:
    """Return the section that a document holds. Raises RecipeError for the first mistake in it.

    where: name of the document at the start of the message
    """
    try:
        return section.model_validate(document)
    except ValidationError as error:
        first_error = error.errors()[0]
        location, error_type = first_error["loc"], first_error["type"]
        message = first_error["msg"].removeprefix("Value error, ").replace(" after validation", "")
        if location[-1:] == ("[key]",):  # pydantic's mark of a mistake in a key instead of its value
            problem = f"{_format_key(location[:-2])}: {format_value(location[-2])} is not a name: {message}"
        elif error_type == "extra_forbidden":
            suggestion = suggest_or_list_names(location[-1], _list_section_keys(section, location))
            problem = f"{_format_key(location)} is not a key{suggestion}"
        elif error_type == "value_error":
            problem = ": ".join(part for part in (_format_key(location), message) if part)
        else:
            setting = f"{_format_key(location) or 'the whole'} = {format_value(first_error['input'])}"
            names = re.findall(r"'([^']*)'", message) if error_type == "literal_error" else []
            problem = f"{setting}: {_TYPE_MESSAGES.get(error_type, message)}{suggest_name(first_error['input'], names)}"
        code = "unknown-key" if error_type == "extra_forbidden" else None
        raise RecipeError(f"{where}: {problem}", code=code) from None


def format_value(value: Any) -> str:
    """Return a value roughly as TOML writes it, cut after 80 characters."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "…"


def suggest_name(name: Any, known_names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest known name; empty if none is close."""
    matches = difflib.get_close_matches(str(name), list(known_names), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def suggest_or_list_names(name: Any, known_names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest known name, or else lists the known names."""
    known_names = list(known_names)
    return suggest_name(name, known_names) or f"; one of: {shorten(', '.join(known_names), 300, placeholder=' …')}"


def _format_key(location: Location) -> str:
    """Return a location as a dotted key, such as data.curriculum[0].weights."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    return key if key.isprintable() and len(key) <= 80 else format_value(key)


def _list_section_keys(section: type[BaseModel], location: Location) -> list[str]:
    """Return the keys of the section that holds a misspelt key."""
    annotation: Any = section
    for part in location[:-1]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
            if NoneType in get_args(annotation):
                annotation = next(argument for argument in get_args(annotation) if argument is not NoneType)
        else:  # a list of sections, or sections by name
            annotation = get_args(annotation)[-1]
    further_keys = get_extension_defaults(annotation.hook) if issubclass(annotation, ExtensibleSection) else ()
    return [*annotation.model_fields, *further_keys]
