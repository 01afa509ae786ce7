"""Model cards: the front matter of `README.md`, which states license and languages. Only these keys are read, without YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.conversion.source_files import SourceFiles

MAX_VALUE_LENGTH = 200
"""Longest value that is kept."""


def read_license(files: SourceFiles) -> str | None:
    """Return the license that the model card of a folder states."""
    card = read_front_matter(files.read_text("README.md")) if "README.md" in files else {}
    return next(iter(card.get("license", [])), None)


def read_front_matter(text: str) -> dict[str, list[str]]:
    """Return the values of each top-level key between the first two lines `---`; other lines are ignored.

    A value is one text, a list in brackets, or lines that begin with a dash.
    """
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    values: dict[str, list[str]] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return values
        if (item := re.fullmatch(r"\s*-\s+(.*)", line)) is not None and key:
            values[key].append(_unquote(item[1]))
        elif (entry := re.fullmatch(r"([\w-]+):\s*(.*)", line)) is not None:
            key, value = entry[1], entry[2].strip()
            items = value[1:-1].split(",") if value.startswith("[") and value.endswith("]") else [value]
            values[key] = [text for text in map(_unquote, items) if text]
    return {}  # without an end it is no front matter


def _unquote(text: str) -> str:
    return text.strip().strip("'\"")[:MAX_VALUE_LENGTH]
