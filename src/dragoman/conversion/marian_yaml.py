"""Reader of the YAML that Marian writes: settings, and vocabularies. Anything else is an error, and nothing is executed.

A file of settings holds lines `key: value`. The value is a text, a number, a truth value, or a list. A list is in brackets, or
on lines that begin with a dash. A vocabulary holds lines `token: number`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dragoman.conversion.mapped_arrays import damaged

ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b", "N": "\x85",
    "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
"""Characters after a backslash in a text in double quotes; other characters stand for themselves."""
WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
MAX_NUMBER_LENGTH = 40


def parse_settings(text: str, path: Path) -> dict[str, Any]:
    """Return the settings of a file. Raise DataError, which names `path` and the line, for any other line."""
    settings: dict[str, Any] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if not content or content.startswith("#") or content in ("---", "..."):
            continue
        try:
            if content.startswith("- ") and key:
                settings[key] = [*(settings[key] or []), _parse_scalar(content[2:].strip())]
            elif line[0] in " \t" and content == "[]" and key:
                settings[key] = []
            elif (entry := re.fullmatch(r"([\w-]+):(?:\s+(.*))?", line)) is not None:
                key = entry[1]
                settings[key] = _parse_value((entry[2] or "").strip())
            else:
                raise ValueError
        except (ValueError, TypeError):
            raise damaged(path, f"line {number}: {content[:40]!r} is not a setting that Marian writes") from None
    return settings


def _parse_value(text: str) -> Any:
    """Return the value of a list in brackets or of a scalar."""
    if text.startswith("[") and text.endswith("]"):
        return [_parse_scalar(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    """Return a text, a number or a truth value. Raise ValueError for the beginning of another construct."""
    if text[:1] in ('"', "'"):
        return unquote(text)
    if text in WORDS:
        return WORDS[text]
    if len(text) <= MAX_NUMBER_LENGTH and re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return int(text)
    if len(text) <= MAX_NUMBER_LENGTH and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        return float(text)
    if text[:1] in "&*!|>%@`{[":
        raise ValueError
    return text


def parse_vocabulary(text: str, path: Path) -> dict[str, int]:
    """Return the number of each token. Raise DataError, which names `path` and the line, for a line that is none."""
    numbers: dict[str, int] = {}
    token: str | None = None
    for line_number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if not line or line in ("---", "..."):
            continue
        try:
            if line.startswith("? "):  # a long token has a line of its own
                token = unquote(line[2:].strip())
                continue
            key, _, value = line.rpartition(":")
            token = unquote(key.strip()) if token is None else token
            if not re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII) or token in numbers:
                raise ValueError
        except ValueError:
            raise damaged(path, f"line {line_number}: {line[:40]!r} is not a token and its number") from None
        numbers[token] = int(value)
        token = None
    return numbers


def unquote(text: str) -> str:
    """Return the text of a scalar in double quotes, single quotes or none. Raise ValueError if a quote has no end."""
    if text[:1] not in ('"', "'"):
        return text
    if len(text) < 2 or text[-1] != text[0]:
        raise ValueError
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    unescaped = re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", _unescape, text[1:-1])
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16")  # joins the halves of a surrogate pair


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] in "xuU" and len(code) > 1 else ESCAPES.get(code, code)
