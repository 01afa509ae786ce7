"""Front matter of a Markdown file, in YAML, TOML or JSON: titles and descriptions are texts, and everything else is kept."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.documents.encoded_text import EncodedText
from dragoman.documents.yaml_file import read_scalars, write_scalar
from dragoman.errors import DataError

KEYS = (
    "title", "subtitle", "description", "summary", "excerpt", "linkTitle", "sidebar_label", "short_title", "nav_title",
)  # fmt: skip
"""Keys of the outermost level whose values are texts, as Hugo, Jekyll, Docusaurus and MkDocs have them."""
_HOME_KEYS = {"hero", "features"}, {"text", "tagline", "title", "details", "linkText"}
"""Outermost and innermost keys of the texts that VitePress shows on a home page."""
LANGUAGE_KEY = "lang"
"""Key whose value is the language of the file, as Jekyll, VuePress and Pandoc have it."""
_READ_KEYS = "|".join((*KEYS, LANGUAGE_KEY))

_TOML_VALUE = re.compile(
    rf"""^({_READ_KEYS})[ \t]*=[ \t]*"""
    r"""("{3}(?:[^"\\]++|\\[\s\S]|"(?!""))*+"{3}|'{3}(?:[^']|'(?!''))*+'{3}|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*')""",
    re.MULTILINE,
)
_JSON_VALUE = re.compile(rf"""^[ \t]*"({_READ_KEYS})"[ \t]*:[ \t]*("(?:[^"\\\n]++|\\.)*+")""", re.MULTILINE)
_TOML_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


@dataclass(frozen=True)
class FrontText:
    """Text of front matter. start, end: its characters in the file. write: function from a text to what the file has for it"""

    key: str
    value: str
    start: int
    end: int
    write: Callable[[str], str]


def read_front_matter(text: EncodedText, end: int) -> list[FrontText]:
    """Return the texts of the front matter in the characters before `end`, and its language; none if it is not valid.

    Raises MissingDependencyError without ruamel.yaml.
    """
    content = text.text[:end].rstrip()
    try:
        match content[0]:
            case "+":
                return _read_toml(content[:-3])
            case "{":
                return _read_json(content)
            case _:
                return _read_yaml(text, content[:-3])
    except DataError:
        return []


def _read_yaml(text: EncodedText, content: str) -> list[FrontText]:
    scalars = [scalar for scalar in read_scalars(content) if _is_text(scalar.path)]
    counts = Counter(scalar.path for scalar in scalars)
    return [
        FrontText(
            ".".join(map(str, scalar.path)),
            scalar.value,
            scalar.start,
            scalar.end,
            lambda value, scalar=scalar: write_scalar(text, scalar, value),  # type: ignore[misc]
        )
        for scalar in scalars
        if counts[scalar.path] == 1
    ]


def _is_text(path: Sequence[object]) -> bool:
    """Return whether the value under these keys is a text or the language of the file."""
    if len(path) < 2:  # one value without a key has none
        return bool(path) and path[0] in (*KEYS, LANGUAGE_KEY)
    return path[0] in _HOME_KEYS[0] and path[-1] in _HOME_KEYS[1]


def _read_toml(content: str) -> list[FrontText]:
    body = content.removeprefix("+++").replace("\r\n", "\n")
    try:
        values = tomllib.loads(body)
    except (ValueError, RecursionError):  # also one for an integer of more than 4,300 digits
        return []
    table = _TOML_TABLE.search(content)
    return [
        FrontText(match[1], values[match[1]], *match.span(2), _write_toml)
        for match in _TOML_VALUE.finditer(content, 0, table.start() if table else len(content))
        # A line inside a string of several lines looks the same, so the value has to be that of the key.
        if values.get(match[1]) == _read_string(match[2]) and values[match[1]].strip()
    ]


def _read_json(content: str) -> list[FrontText]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):  # also one for an integer of more than 4,300 digits
        return []
    matches = list(_JSON_VALUE.finditer(content))
    counts = Counter(match[1] for match in matches)
    return [
        FrontText(match[1], values[match[1]], *match.span(2), lambda value: json.dumps(value, ensure_ascii=False))
        for match in matches
        # The key can also be that of an object in the object.
        if counts[match[1]] == 1 and values.get(match[1]) == json.loads(match[2], strict=False) and values[match[1]].strip()
    ]


def _read_string(quoted: str) -> str | None:
    try:
        return str(tomllib.loads(f"value = {quoted}")["value"])
    except tomllib.TOMLDecodeError:
        return None


def _write_toml(value: str) -> str:
    """Return a TOML string. Its escapes are those of JSON, and DEL needs one, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
