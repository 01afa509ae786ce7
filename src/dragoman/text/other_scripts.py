"""Words that a model cannot read, which stay as they are.

They are in a script that neither language of its pair has, or have a character that its tokenizer reads as bytes or as unknown.
Indices of Unicode, as in `H₂O`, are among the rarest characters of a corpus, so a word that has one stays, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache

from dragoman.languages import UNSPACED, get_language
from dragoman.text.guards import SCRIPTS, get_script
from dragoman.text.inline_codes import CodedText
from dragoman.text.kept_terms import mark_spans
from dragoman.text.marks import MARK_CHARACTERS

_SCRIPTS_BUT_LATIN = frozenset().union(*SCRIPTS.values()) - {"LATIN"} | {
    "BENGALI", "BOPOMOFO", "ETHIOPIC", "GUJARATI", "GURMUKHI", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN", "MYANMAR",
    "ORIYA", "SINHALA", "SYRIAC", "TAMIL", "TELUGU", "TIBETAN",
}  # fmt: skip
_EAST_ASIAN = frozenset(("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH", "BOPOMOFO"))
_FIRST = re.compile("[^\x00-\u036f\u1e00-\u1eff\u2000-\u206f]")
_INDICES = "\u2070\u2071\u2074-\u208e\u2090-\u209c"
_INDEX = re.compile(f"[{_INDICES}]")
_PART_OF_WORD = rf"[^\W{UNSPACED}]|[\u0300-\u036f{_INDICES}]"
_WORD = re.compile(rf"(?:{_PART_OF_WORD})++|[^\w\s]")
_GAP = re.compile(r"[^\w<>&\n]{1,3}")
MAX_WORD = 500
"""Most characters of a word. A longer one is data."""
_LONG_WORD = re.compile(rf"[^\s{UNSPACED}]{{{MAX_WORD + 1},}}+")


@lru_cache(maxsize=256)
def find_other_scripts(source_language: str, target_language: str) -> frozenset[str]:
    """Return the scripts of neither language, as the names of their letters begin; empty if the script of one is not known.

    Latin is never among them, because names and codes of all languages have its letters.
    """
    scripts = [SCRIPTS.get(get_language(language), frozenset()) for language in (source_language, target_language)]
    if not all(scripts):
        return frozenset()
    known = frozenset().union(*scripts)
    return _SCRIPTS_BUT_LATIN - known - (_EAST_ASIAN if "CJK" in known else frozenset())


def is_in_other_script(text: str, scripts: frozenset[str]) -> bool:
    """Return whether most of a text is in these scripts. A character of Chinese or Japanese counts as two letters."""
    if not scripts or _FIRST.search(text) is None:
        return False
    letters = [get_script(character) for character in text if character.isalpha()]
    num_other = sum(1 + (script in _EAST_ASIAN) for script in letters if script in scripts)
    return num_other > sum(script not in scripts for script in letters)


def mark_unread_words(text: CodedText, scripts: frozenset[str], reads: Callable[[str], bool] | None) -> CodedText:
    """Return a text whose words that a model cannot read are points, which every translation keeps.

    scripts: scripts whose words it cannot read
    reads: function that returns whether its tokenizer has pieces for a text; None for any text
    """
    if text.clean.text.isascii():
        return text
    if scripts and _FIRST.search(text.clean.text):
        text = mark_spans(text, lambda part: _find_spans(part, scripts))
    unread = set(filter(lambda character: _is_unread(character, reads), text.clean.text))
    if not unread:
        return text

    def find(part: str) -> Iterator[tuple[int, int]]:
        for match in _WORD.finditer(part):
            if not unread.isdisjoint(match[0]) and (_INDEX.search(match[0]) or not (reads and reads(match[0]))):
                yield match.span()

    return mark_spans(text, find)


def mark_long_words(text: CodedText) -> CodedText:
    """Return a text whose words of more than `MAX_WORD` characters are points. Such a word is data, such as base64."""
    if len(text.clean.text) <= MAX_WORD or _LONG_WORD.search(text.clean.text) is None:
        return text
    return mark_spans(text, lambda part: (match.span() for match in _LONG_WORD.finditer(part)))


def mark_same_words(text: CodedText, words: Collection[str]) -> CodedText:
    """Return a text with these words as points."""
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    return mark_spans(text, lambda part: (match.span() for match in pattern.finditer(part))) if words else text


def _is_unread(character: str, reads: Callable[[str], bool] | None) -> bool:
    """Return whether a word with this character may be one that the model cannot read."""
    if character.isascii() or character.isspace() or character in MARK_CHARACTERS:
        return False
    return _INDEX.match(character) is not None or not (reads is None or reads(character))


def _find_spans(text: str, scripts: frozenset[str]) -> list[tuple[int, int]]:
    """Return the spans of the words in these scripts, also of several with marks between them, but not of single Greek letters.

    Single Greek letters are the names of quantities, which models know.
    """
    spans: list[tuple[int, int]] = []
    for position, character in enumerate(text):
        start, end = spans[-1] if spans else (-1, -1)
        is_mark = position == end and unicodedata.category(character).startswith("M")
        if is_mark or (character.isalpha() and get_script(character) in scripts):
            if start >= 0 and (position == end or _GAP.fullmatch(text, end, position)):
                spans[-1] = start, position + 1
            else:
                spans.append((position, position + 1))
    return [span for span in spans if not _is_symbol(text[slice(*span)])]


def _is_symbol(word: str) -> bool:
    return len(word) == 1 and get_script(word) == "GREEK"
