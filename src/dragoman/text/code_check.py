"""Last check of a translation: it has each code of its source once, and inside the same pairs.

It reads both texts as they are written, so it depends on no step in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dragoman.text.inline_codes import CodedText, Element, Part, Point, list_texts
from dragoman.text.references import count_sign, get_sign, is_invisible, read_reference
from dragoman.text.word_codes import mark_word_codes

CodeFlag = Literal["xmltags", "printf", "variables", "urls", "emails"]
"""Name of a check for codes, which is that of the Translate Toolkit's pofilter."""

MAX_NAMED = 3
"""Codes that a sentence names."""
MAX_JOINED = 40
"""Most characters of a code that is looked for in words."""

_STRONG_STARTS = ("<", "%", "{", "$", "⟦", "[X", "[%", "@:", "#{")
_SIGNS = ("%", "$", "!", "@", ":", "#", "{", "[")
_SIGN = re.compile(r"[%$!@:#{\[]")
_EMAIL = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+")


@dataclass(frozen=True)
class CodeDifference:
    """Difference between the codes of a translation and of its source.

    missing, added: codes that the translation has less often, and more often
    moved: codes that are inside other pairs than in the source
    """

    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    @property
    def flags(self) -> list[CodeFlag]:
        """Names of the checks that missing and added codes fail."""
        return list(dict.fromkeys(map(_get_flag, (*self.missing, *self.added))))

    def describe(self) -> str:
        """Return a sentence for a translator; empty without a difference."""
        parts = [
            f"{verb} {_name(codes)}"
            for verb, codes in (("lacks", self.missing), ("has too many", self.added), ("moves", self.moved))
            if codes
        ]
        return f"the translation {' and '.join(parts)}" if parts else ""


NO_DIFFERENCE = CodeDifference()


def compare_codes(source: CodedText, translation: CodedText) -> CodeDifference:
    """Return the difference between the codes of two texts that were read by the same rules.

    A new code counts only if it is one in every text, such as a tag or `%s`, and no text of the source. A new name with a
    colon may be punctuation. Elements inside words count as points, see `mark_word_codes`, or as elements.
    """
    difference = _compare(source, translation)
    if difference != NO_DIFFERENCE:
        difference = _compare(mark_word_codes(source), mark_word_codes(translation))
    lost = tuple(_list_lost_brackets(source, translation)) if source.is_escaped else ()
    return replace(difference, missing=(*difference.missing, *lost)) if lost else difference


def _list_lost_brackets(source: CodedText, translation: CodedText) -> Iterator[str]:
    """Yield a reference for each `<` and `>` of the source's text that the translation lacks."""
    old = "".join(list_texts(source.parts))
    for character, reference in (("<", "&lt;"), (">", "&gt;")):
        if count := old.count(character):
            yield from [reference] * (count - sum(text.count(character) for text in list_texts(translation.parts)))


def _compare(source: CodedText, translation: CodedText) -> CodeDifference:
    places, new_places = list(_list_places(source.parts)), list(_list_places(translation.parts))
    if places == new_places and not any(code.startswith(_SIGNS) for _, code in places):
        return NO_DIFFERENCE
    codes, new_codes = (Counter(code for _, code in side) for side in (places, new_places))
    joined, new_joined = (_count_joined(side, codes) for side in (source, translation))
    codes, new_codes = codes + joined, new_codes + new_joined
    if places == new_places and joined == new_joined:
        return NO_DIFFERENCE
    gone = codes - new_codes
    missing = tuple(gone.elements())
    if any(code.startswith("&") for code in missing):
        missing = tuple(_list_lost(missing, source, translation))
    added = tuple(code for code in (new_codes - codes).elements() if code in codes or code.startswith(_STRONG_STARTS))
    if added and (text := "".join(list_texts(source.parts))):
        added = tuple(code for code in added if code not in text)  # as `$1` in `$1 each`
    moves = (Counter(places) - Counter(new_places)).elements() if not missing and not added else ()
    moved = tuple(code for _, code in moves if code not in gone)
    return CodeDifference(missing, added, moved)


def _count_joined(side: CodedText, codes: Collection[str]) -> Counter[str]:
    """Return how often codes are in the texts of a side: joined to a word, they are read as text, but programs replace them."""
    lengths = {len(code) for code in codes if code.startswith(_SIGNS) and 1 < len(code) <= MAX_JOINED}
    text = "\n".join(list_texts(side.parts)) if lengths else ""
    starts = (match.start() for match in _SIGN.finditer(text))
    pieces = ({text[start : start + length] for length in lengths} for start in starts)
    return Counter(piece for ends in pieces for piece in ends if piece in codes)


def _list_lost(missing: Sequence[str], source: CodedText, translation: CodedText) -> Iterator[str]:
    """Yield the codes that are lost. A reference is not if the translation has its sign, or a variant, as a character."""
    old, new = ("".join(list_texts(side.parts)) for side in (source, translation))
    surplus: dict[str, int] = {}  # signs of the translation that the source lacks as characters
    for code in missing:
        sign = get_sign(read_reference(code))
        if sign and sign not in surplus:
            surplus[sign] = count_sign(new, sign) - count_sign(old, sign)
        if surplus.get(sign, 0) > 0:
            surplus[sign] -= 1
        else:
            yield code


def _list_places(parts: Sequence[Part], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each code with the starts of the pairs around it. Line breaks are checked elsewhere."""
    for part in parts:
        if isinstance(part, Element):
            yield path, part.start_tag
            yield from _list_places(part.parts, (*path, part.start_tag))
            yield path, part.end_tag
        elif isinstance(part, Point) and not part.markup.isspace() and not is_invisible(part.markup):
            yield path, part.markup


def _get_flag(code: str) -> CodeFlag:
    if code.startswith("<"):
        return "xmltags"
    if code.startswith("%"):
        return "printf"
    if "://" in code or code.startswith("www."):
        return "urls" if code[0].isalpha() else "variables"
    return "emails" if _EMAIL.fullmatch(code) else "variables"


def _name(codes: Sequence[str]) -> str:
    names = list(dict.fromkeys(" ".join(code.split())[:40] for code in codes))
    rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + rest
