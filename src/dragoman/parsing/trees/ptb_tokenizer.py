"""English tokenizer in the style of the Penn Treebank, which separates punctuation and clitics such as 's and n't.

Later treebanks such as OntoNotes and CRAFT also separate a hyphen or slash between two words. The tokenizer only changes double
quotation marks, straight or curly, which become `` and ''.
"""

from __future__ import annotations

import re
from typing import Literal

TokenizationStyle = Literal["ptb", "ontonotes"]
"""Treatment of hyphens: `well-known` is one word (`ptb`, the Wall Street Journal trees) or three (`ontonotes`, also CRAFT)."""

# Each rule puts spaces around a match. A period is separated only at the end of the text, because abbreviations keep theirs.
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
# A prefix or suffix that is no word by itself stays attached by its hyphen.
_PREFIX = re.compile(
    "(?i)anti|auto|bi|co|counter|cross|de|ex|extra|hyper|hypo|inter|intra|mid|mini|multi|neo|non|over|pan|post|pre|pro|pseudo|"
    "quasi|re|semi|sub|super|supra|trans|tri|ultra|un|under|uni"
)
_SUFFIX = re.compile("(?i)fold|wise")
_HYPHEN_OR_SLASH = re.compile(r"(?<=\w)([-/])(?=\w)")


def tokenize_ptb(text: str, *, style: TokenizationStyle = "ptb") -> list[str]:
    """Return the words of one sentence."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    words = text.split()
    return words if style == "ptb" else [part for word in words for part in _split_hyphenated(word)]


def _split_hyphenated(word: str) -> list[str]:
    """Return a word split at its hyphens and slashes, except at those of a prefix or suffix and in a URL."""
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
