"""English text into words as the Penn treebank has them: punctuation and endings such as 's and n't stand alone.

Later treebanks, OntoNotes and CRAFT among them, take a hyphen or slash between two words for a word of its own, too. Nothing
but straight and curly double quotation marks changes, which become `` and ''.
"""

from __future__ import annotations

import re
from typing import Literal

HyphenMode = Literal["kept", "split"]
"""Whether `well-known` is one word, as in the Wall Street Journal's trees, or three, as in OntoNotes and CRAFT."""

# Each puts something apart by spaces. A full stop goes only at the end, lest abbreviations lose theirs.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r'(^|[\s(\[{<])"|[“„]'), r"\1 `` "),
    (re.compile(r'"|”'), r" '' "),
    (re.compile(r"(\.{3,}|…|-{2,}|—|[][(){}<>;@#$%&?!])"), r" \1 "),
    (re.compile(r"(?:(?<!\d)([,:])|([,:])(?!\d))(?!//)"), r" \1\2 "),
    (re.compile(r"(?<=[^.\s])\.(?=[\s)\]}>'’]*$)"), r" . "),
    (re.compile(r"(?i)\b(?:(can)(not)|(gim|lem)(me)|(gon|wan)(na)|(got)(ta))\b"), r"\1\3\5\7 \2\4\6\8"),
    (re.compile(r"(?i)(?<=\w)(n['’]t)\b"), r" \1"),
    (re.compile(r"(?i)(?<=[^\s'’`])(['’](?:s|m|d|ll|re|ve))\b"), r" \1"),
    (re.compile(r"(?<=\w)(['’])(?=\s|$)"), r" \1"),
)
# What is never a word by itself stays with what follows its hyphen, or goes before it.
_PREFIX = re.compile(
    "(?i)anti|auto|bi|co|counter|cross|de|ex|extra|hyper|hypo|inter|intra|mid|mini|multi|neo|non|over|pan|post|pre|pro|pseudo|"
    "quasi|re|semi|sub|super|supra|trans|tri|ultra|un|under|uni"
)
_SUFFIX = re.compile("(?i)fold|wise")
_HYPHEN_OR_SLASH = re.compile(r"(?<=\w)([-/])(?=\w)")


def tokenize_ptb(text: str, *, hyphens: HyphenMode = "kept") -> list[str]:
    """The words of one sentence."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    words = text.split()
    return words if hyphens == "kept" else [part for word in words for part in _split_hyphenated(word)]


def _split_hyphenated(word: str) -> list[str]:
    """A word, parted at its hyphens and slashes but for those of a prefix or a suffix; an address stays whole."""
    if "://" in word:
        return [word]
    first_part, *remaining_parts = _HYPHEN_OR_SLASH.split(word)
    parts = [first_part]
    for sign, part in zip(remaining_parts[::2], remaining_parts[1::2], strict=True):
        if sign == "-" and (_PREFIX.fullmatch(parts[-1]) or _SUFFIX.fullmatch(part)):
            parts[-1] += sign + part
        else:
            parts += [sign, part]
    return parts
