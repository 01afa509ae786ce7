"""Codes inside words: marks of notes, formulas, and readings beside characters become points, so that words stay whole.

A superscript of digits or signs, such as `<sup>1</sup>`, and a link to a note are points without text. A formula, such as
`H<sub>2</sub>O`, is one code that the model reads as `H2O`. The superscript of an ordinal, such as `17<sup>th</sup>`, is
dropped, because most languages write ordinals without one. Other elements inside a word, such as drop caps, stay elements; the
projection puts them around letters of the word in the translation.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from typing import TypeGuard

from dragoman.text.inline_codes import CodedText, Element, Part, Point, list_leaves, write_parts

_SCRIPT_TAGS = frozenset(("sup", "sub"))
_READING_TAGS = frozenset(("rt", "rp", "rtc"))
_TAG_NAME = re.compile(r"<([A-Za-z][^\s<>/]*)")
_WORD_ELEMENT = re.compile(r"<(?:su[bp]|rp|rtc?)(?![^\s<>/])", re.IGNORECASE)
_NOTE_LINK = re.compile(r"\shref\s*=\s*[\"']?[^\"'\s<>]*#|\b(?:noteref|footnote|doc-noteref)\b", re.IGNORECASE)
_MARK = re.compile(
    r"[\s\[(]*(?:[\d*†‡§¶#.,;:/+−–-]+|[a-df-np-z]"
    r"|[a-z\d](?:(?:[+−–=-]|,[ ]?)[a-z\d]){1,4}|[ivxlc]{1,6}|[A-Z]{2}|[℠™®©]+)[\s\])]*"
)
_ORDINAL = re.compile(r"[^\W\d_]{1,4}\.?")
_NUMBER_BEFORE = re.compile(r"(?:\d|\b[IVXLC]{1,7})\Z")
_SIGNS = re.compile(r"[\W\d_]+")
_TAG = re.compile("<[^<>]*>")
_FORMULA_HEAD = re.compile(r"(?<![^\W_])[A-Za-z][A-Za-z0-9]*\Z")
_FORMULA = re.compile(r"[A-Za-z0-9]+")
MAX_FORMULA_HEAD = 8
"""Most letters and digits before the first index of a formula; a longer word has a mark behind it."""


def mark_word_codes(text: CodedText) -> CodedText:
    """Return a text whose elements inside words, as far as they are no text of their own, are points."""
    if not any([isinstance(part, Element) for part in text.parts]) or not _may_have_word_codes(text.parts):
        return text
    parts = _mark_parts(text.parts, is_escaped=text.is_escaped)
    return text if parts == text.parts else replace(text, parts=parts)


def _may_have_word_codes(parts: Sequence[Part]) -> bool:
    """Return whether there is an element that a word may hold, or an index; most texts have none, and this is fast."""
    is_after_text = False
    for part in parts:
        if isinstance(part, str):
            if is_after_text:  # neighboring texts become one
                return True
            is_after_text = True
            continue
        is_after_text = False
        if isinstance(part, Point):
            if _is_index(part):
                return True
        elif (
            _WORD_ELEMENT.match(part.start_tag)
            or _may_have_word_codes(part.parts)
            or (part.start_tag[:2] in ("<a", "<A") and _SIGNS.fullmatch(_get_text(part.parts)))
        ):
            return True
    return False


def is_note_mark(name: str, start_tag: str, text: str) -> bool:
    """Return whether an element is the mark of a note, an exponent, an index, or a reading beside characters.

    name: name of the tag
    text: text of the element
    """
    if name in _SCRIPT_TAGS:
        return is_script_mark(text)
    if name == "a":
        return _SIGNS.fullmatch(text) is not None and bool(text.strip()) and _NOTE_LINK.search(start_tag) is not None
    return name in _READING_TAGS


def is_ordinal(before: str, text: str) -> bool:
    """Return whether a superscript is the end of an ordinal, such as `th` behind 17. before: the text before it"""
    return _ORDINAL.fullmatch(text) is not None and _NUMBER_BEFORE.search(before[-8:]) is not None


def is_script_mark(text: str) -> bool:
    """Return whether a superscript or subscript is the mark of a note, an exponent or an index."""
    return bool(text.strip()) and _MARK.fullmatch(text) is not None


def _mark_parts(parts: Sequence[Part], *, is_escaped: bool) -> tuple[Part, ...]:
    output: list[Part] = []
    for part in parts:
        if isinstance(part, Element):
            name = _TAG_NAME.match(part.start_tag)
            text = _get_text(part.parts)
            if name and is_note_mark(name[1].lower(), part.start_tag, text):
                output.append(Point(write_parts((part,), is_escaped=is_escaped)))
                continue
            before = output[-1] if output else ""
            if name and name[1].lower() == "sup" and isinstance(before, str) and is_ordinal(before, text):
                output.append(text)
                continue
            part = replace(part, parts=_mark_parts(part.parts, is_escaped=is_escaped))
        output.append(part)
    joined: list[Part] = []
    texts: list[str] = []
    for item in (*output, None):
        if isinstance(item, str):
            texts.append(item)
            continue
        joined += ["".join(texts)] if texts else []
        texts.clear()
        joined += [] if item is None else [item]
    return tuple(_join_formulas(joined))


def _join_formulas(parts: Sequence[Part]) -> list[Part]:
    """Return parts with one code for each word that has an index between or behind letters, such as `CO<sub>2</sub>`."""
    output: list[Part] = []
    remaining = deque(parts)
    while remaining:
        part = remaining.popleft()
        before = output[-1] if output else ""
        head = find_formula_head(before) if isinstance(before, str) else ""
        if not head or not isinstance(before, str) or not _is_index(part):
            output.append(part)
            continue
        output[-1] = before.removesuffix(head)
        markup = plain = head
        while part:
            markup += part if isinstance(part, str) else part.markup
            plain += part if isinstance(part, str) else unescape(_TAG.sub("", part.markup))
            part = _take_formula(remaining)
        output.append(Point(markup, plain))
    return [part for part in output if part != ""]


def _is_index(part: Part) -> TypeGuard[Point]:
    return isinstance(part, Point) and part.markup[:5].lower() == "<sub>"


def _take_formula(remaining: deque[Part]) -> str | Point:
    """Return what continues a formula at the start of the remaining parts, and remove it; nothing if the formula ends."""
    part = remaining[0] if remaining else ""
    if isinstance(part, Point) and part.markup[:5].lower() in ("<sub>", "<sup>"):
        remaining.popleft()
        return part
    if isinstance(part, str) and (end := find_formula_end(part)):
        remaining[0] = part[len(end) :]
        if not remaining[0]:
            remaining.popleft()
        return end
    return ""


def find_formula_head(text: str) -> str:
    """Return the letters and digits at the end of a text that can begin a formula, or an empty text."""
    match = _FORMULA_HEAD.search(text[-MAX_FORMULA_HEAD - 1 :])
    return match[0] if match and len(match[0]) <= MAX_FORMULA_HEAD else ""


def find_formula_end(text: str) -> str:
    """Return the letters and digits at the start of a text that continue a formula, or an empty text."""
    match = _FORMULA.match(text)
    return match[0] if match else ""


def _get_text(parts: Sequence[Part]) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in list_leaves(parts))
