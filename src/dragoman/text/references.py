"""Character references: those that spell a word, and those that stand for a sign or a space, which a translation keeps.

A language may write a sign in another way, as German has „ for “. Such variants count as the sign.
"""

from __future__ import annotations

import html
import re
import unicodedata

REFERENCE = re.compile(r"&(?:[A-Za-z_][\w.-]{0,60}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")

_APOSTROPHES = "'\u2018\u2019\u02bc"
_JOINERS = "\u200c\u200d"  # inside words of Persian and of Indian languages
_ELLIPSIS = "\u2026"
_VARIANTS = (
    "\"'\u00ab\u00bb\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2039\u203a\u300c\u300d\u300e\u300f",
    "\u2012\u2013\u2014\u2015",
)
_FIRST_VARIANTS = {character: variants[0] for variants in _VARIANTS for character in variants}


ICONS = "\u2500-\u259f\u2800-\u28ff\ue000-\uf8ff\ufffc\ufffd\U000f0000-\U0010fffd"
"""Lines of boxes, blocks, braille, and characters for private use, such as icons of fonts, for a set of a pattern."""
_ICONS = re.compile(f"[{ICONS}]+")
INVISIBLE = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
"""Characters without width that mean nothing to a model, for a set of a pattern; controls that end a line are not in it."""
COLOR = r"\x1b\[[\d;]*+m"
"""Pattern of a sequence of a terminal that sets a color."""
# Languages without spaces write U+200B between words.
WITHOUT_WIDTH = rf"(?:{COLOR}|(?<![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff])\u200b|(?!\u200b)[{INVISIBLE}])++"
"""Pattern of what has no width and means nothing to a model."""
_WITHOUT_WIDTH = re.compile(WITHOUT_WIDTH)
_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")
_INVISIBLE = re.compile(f"(?:{COLOR}|[{INVISIBLE}])+")


def spells_word(character: str, before: str, after: str) -> bool:
    """Return whether a character that is written as a reference is part of a word, such as é, or the apostrophe in don’t.

    before, after: the characters beside it, or empty texts
    """
    category = unicodedata.category(character[0])
    if character[0] in _APOSTROPHES + _JOINERS:
        return before.isalpha() and after.isalpha()
    return category[0] in "LM" or category == "Nd"


def is_invisible(text: str) -> bool:
    """Return whether a text has no width, as a soft hyphen and a mark of direction have none."""
    return _INVISIBLE.fullmatch(text) is not None or (len(text) == 1 and unicodedata.category(text) == "Cf")


def clean_line(line: str) -> str:
    """Return a line without what has no width, and with a space for tabs and line breaks; one without other text stays."""
    if line.isprintable():
        return line
    cleaned = _BREAKS.sub(" ", _WITHOUT_WIDTH.sub("", line))
    return cleaned if cleaned.strip() else line


def is_icon(text: str) -> bool:
    """Return whether a text has icons alone, which mean nothing to a model."""
    return text[:1] >= "\u2500" and _ICONS.fullmatch(text) is not None


def get_sign(character: str) -> str:
    """Return the first of the variants of a sign; the character itself for one without variants."""
    return _FIRST_VARIANTS.get(character, character)


def count_sign(text: str, character: str) -> int:
    """Return how often a text has a sign or a variant of it."""
    variants = next((variants for variants in _VARIANTS if character in variants), character)
    count = sum(map(text.count, variants))
    return count + text.count("...") if character == _ELLIPSIS else count


def read_reference(markup: str) -> str:
    """Return the character of a reference; an empty text for one that HTML does not know, and for what is none."""
    if not REFERENCE.fullmatch(markup):
        return ""
    text = html.unescape(markup)
    return "" if text == markup else text
