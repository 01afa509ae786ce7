"""Division of a paragraph into sentences by rules, with the positions of each sentence.

A sentence ends at a mark such as `.`, `?` or `。`, with the quotation marks and brackets that close after it. The rules keep
together what only looks like an end: abbreviations, initials, ordinal numbers, and a mark before a lower-case letter.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dragoman.languages import get_language

Span = tuple[int, int]
"""First character and the position after the last one."""

# Marks of scripts with spaces between sentences: Latin, Arabic, Urdu, Devanagari, Ethiopic, Armenian, Burmese and Khmer.
_SPACED_MARKS = ".!?…‼‽⁇⁈⁉؟۔।॥።፧፨։။៕"
_UNSPACED_MARKS = "。！？｡．"
_CLOSERS = "\"'”’»›)\\]}」』）】〉》｣“‘"
_OPENERS = "\"'“‘«‹([{„‚「『（【〈《¿¡–—-"
# A French quotation mark closes after a space, and another space or the end of the text follows it.
_CLOSING = rf"[{_CLOSERS}]*+(?:[ \u00a0\u202f][»›](?=\s|$))?"
# A match begins with the first mark of a row, so that a row of marks is read once.
_SENTENCE_END = re.compile(
    rf"(?<![{_SPACED_MARKS}])(?P<marks>[{_SPACED_MARKS}]++){_CLOSING}\s++"
    rf"|[{_UNSPACED_MARKS}]++[{_SPACED_MARKS}{_UNSPACED_MARKS}]*+[{_CLOSERS}]*+\s*+"
)
_MARK = re.compile(rf"[{_SPACED_MARKS}{_UNSPACED_MARKS};\u037e]")
"""First character of each match; a set of characters is looked for faster"""
# In Greek, the semicolon is the question mark.
_GREEK_SENTENCE_END = re.compile(_SENTENCE_END.pattern.replace(".!?", ".!?;\u037e"))
_NEXT_CHARACTER = re.compile(rf"[{re.escape(_OPENERS)}\s]*+(.?)", re.DOTALL)
_WORD_START = re.compile(r"[\s(\[\"“„«/]")
_LIST_NUMBER = re.compile(r"[(\[]?(\d{1,3}|[a-zA-Z]|[ivxIVX]{1,4})")

MAX_ABBREVIATION = 24
"""Characters of the longest abbreviation."""
MAX_ORDINAL_DIGITS = 2
ORDINAL_LANGUAGES = {
    "cs", "da", "de", "et", "fi", "fo", "hr", "hu", "is", "lb", "lv", "nb", "nn", "no", "pl", "sk", "sl", "sr", "tr",
}  # fmt: skip
"""Languages that write a period after an ordinal number, as in `am 3. Mai`."""
# Abbreviations that stand before a number, in any language of Latin script.
BEFORE_NUMBERS = {
    "abb", "abs", "al", "art", "bd", "ca", "cap", "cf", "ch", "chap", "col", "eq", "fig", "figs", "kap", "no", "nos",
    "nr", "nro", "núm", "núms", "p", "pag", "pág", "pp", "par", "rys", "s", "sec", "sect", "str", "tab", "vol",
}  # fmt: skip
# Abbreviations that no list of CLDR has for their language, most of them titles.
BEFORE_NAMES = {
    "bijv", "dhr", "dr", "drs", "gen", "hr", "ing", "mag", "mevr", "mgr", "mr", "mrs", "ms", "np", "prof",
    "st", "sv", "tj", "tzv",
}  # fmt: skip


@cache
def _load_abbreviations(language: str) -> frozenset[str]:
    """Return CLDR's abbreviations of a language, without the last period."""
    table = json.loads(Path(__file__).with_name("abbreviations.json").read_text(encoding="utf-8"))
    return frozenset(table.get(language, "").split("|"))


def split_sentences(text: str, language: str, protected: Sequence[Span] = ()) -> list[Span]:
    """Return the spans of the sentences of a text, in order, without the white space around them.

    language: code of the text's language, which selects the abbreviations; an empty code uses the common rules alone
    protected: spans inside which no sentence ends, such as tags, placeholders and addresses, in ascending order
    """
    spans: list[Span] = []
    if _MARK.search(text, 0, len(text) - 1) is None:  # so are most texts in documents
        _append_stripped(spans, text, 0, len(text))
        return spans
    language = get_language(language)
    pattern = _GREEK_SENTENCE_END if language == "el" else _SENTENCE_END
    starts, ends = [start for start, _ in protected], [end for _, end in protected]
    start = len(text) - len(text.lstrip())
    position = 0
    for mark in _MARK.finditer(text):
        if mark.start() < position or (match := pattern.match(text, mark.start())) is None:
            continue
        position = match.end()
        if bisect_left(starts, position) > bisect_right(ends, position):
            continue
        if match["marks"] and not _is_end(text, start, match, language):
            continue
        _append_stripped(spans, text, start, position)
        start = position
    _append_stripped(spans, text, start, len(text))
    return spans


def cut_long_spans(text: str, spans: Sequence[Span], protected: Sequence[Span], max_characters: int) -> list[Span]:
    """Return the spans, with those of more than `max_characters` cut, at white space where there is some.

    protected: spans that are not cut, in ascending order; a result is longer where one of them is
    """
    starts = [start for start, _ in protected]
    results: list[Span] = []
    for start, end in spans:
        while end - start > max_characters:
            cut = max(text.rfind(" ", start + max_characters // 2, start + max_characters), start + max_characters // 2)
            number = bisect_left(starts, cut) - 1
            if number >= 0 and cut < protected[number][1]:
                cut = protected[number][0] if protected[number][0] > start else protected[number][1]
            _append_stripped(results, text, start, min(cut, end))
            start = min(cut, end)
        _append_stripped(results, text, start, end)
    return results


def _append_stripped(spans: list[Span], text: str, start: int, end: int) -> None:
    part = text[start:end]
    if stripped := part.strip():
        first = start + len(part) - len(part.lstrip())
        spans.append((first, first + len(stripped)))


def _is_end(text: str, start: int, match: re.Match[str], language: str) -> bool:
    """Return whether the marks of this match end the sentence that begins at `start`."""
    following = _NEXT_CHARACTER.match(text, match.end())
    next_character = following[1] if following else ""
    if next_character.islower():
        return False
    if match["marks"] != ".":
        return True
    word = _get_last_word(text, start, match.start())
    if _LIST_NUMBER.fullmatch(text, start, match.start()):
        return False
    if word.isdecimal():
        return not (language in ORDINAL_LANGUAGES and len(word) <= MAX_ORDINAL_DIGITS)
    if len(word) == 1 and word.isupper():  # an initial, but not the English pronoun
        return word == "I" and language == "en"
    if next_character.isdecimal() and word.lower() in BEFORE_NUMBERS:
        return False
    return word not in _load_abbreviations(language) and word.lower() not in BEFORE_NAMES


def _get_last_word(text: str, start: int, end: int) -> str:
    """Return the end of the text after the last space, bracket or quotation mark, as far as abbreviations are long."""
    return _WORD_START.split(text[max(start, end - MAX_ABBREVIATION) : end])[-1]
