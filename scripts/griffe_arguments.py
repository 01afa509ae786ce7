"""Griffe extension that reads the `name: description` lines of docstrings as sections of arguments or attributes.

The configuration of the documentation site names this file. A block counts if each of its names is a parameter of the function,
or an attribute or a parameter of the class.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"(\*{0,2}\w+(?:, \w+)*): (\S.*)")


def convert_block(block: str, names: set[str], title: str) -> str:
    """Return a paragraph of `name: description` lines as a section of this title; return other paragraphs unchanged."""
    entries: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        match = ENTRY.fullmatch(line)
        if match and all(name in names for name in match[1].replace("*", "").split(", ")):
            entries.append((match[1], [match[2]]))
        elif entries and line.startswith(" "):
            entries[-1][1].append(line.strip())
        else:
            return block
    lines = [
        f"    {name}: {' '.join(texts)}" for all_names, texts in entries for name in all_names.replace("*", "").split(", ")
    ]
    return "\n".join([f"{title}:", *lines])


class Arguments(griffe.Extension):
    """Converter of the docstrings of functions and classes."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Convert the docstring of a function."""
        self._convert(func, {parameter.name for parameter in func.parameters}, "Args")

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Convert the docstring of a class."""
        self._convert(cls, set(cls.members) | {parameter.name for parameter in cls.parameters}, "Attributes")

    def _convert(self, item: griffe.Object, names: set[str], title: str) -> None:
        if item.docstring is not None:
            blocks = re.split(r"\n\n+", item.docstring.value)
            item.docstring.value = "\n\n".join(convert_block(block, names, title) for block in blocks)
