"""Letters of scripts that neither language of a pair has. A model for the pair cannot read them, so they stay as they are."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from dragoman.languages import get_language
from dragoman.text.guards import SCRIPTS, get_script
from dragoman.text.inline_codes import CodedText
from dragoman.text.kept_terms import mark_spans

_SCRIPTS_BUT_LATIN = frozenset().union(*SCRIPTS.values()) - {"LATIN"} | {
    "BENGALI", "BOPOMOFO", "ETHIOPIC", "GUJARATI", "GURMUKHI", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN", "MYANMAR",
    "ORIYA", "SINHALA", "SYRIAC", "TAMIL", "TELUGU", "TIBETAN",
}  # fmt: skip
_EAST_ASIAN = frozenset(("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH", "BOPOMOFO"))
_FIRST = re.compile("[^\x00-\u036f\u1e00-\u1eff\u2000-\u206f]")
_GAP = re.compile(r"[^\w<>&\n]{1,3}")


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


def mark_other_scripts(text: CodedText, scripts: frozenset[str]) -> CodedText:
    """Return a text whose words in these scripts are points, which every translation keeps."""
    if not scripts or _FIRST.search(text.clean.text) is None:
        return text
    return mark_spans(text, lambda part: _find_spans(part, scripts))


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
