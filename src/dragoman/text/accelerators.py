"""Accelerators of menus, such as `&File` of Qt and `_Open` of GTK: a mark before the letter that a user types.

The text is translated without the mark. The translation has it before the same letter, if it has the letter, and otherwise
before its first one. A language without spaces between words gets the letter in parentheses, as its programs have it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.text.inline_rules import InlineRules
from dragoman.text.placeholders import find_placeholders

_WORD_START = re.compile(r"(?<![\w&_])([&_])(?=[^\W\d_]+(?![\w*_`;]))")
_INSIDE = {
    "&": re.compile(r"(?<=[^\W\d_])(&)(?=[a-z])(?!\w+;)"),
    "_": re.compile(r"(?<=[^\W\d_])(_)(?=[^\W\d_]+(?![\w_]))"),
}


@dataclass(frozen=True)
class Accelerator:
    """Accelerator of a text. mark: `&` or `_`. letter: the letter behind it. text: the text without the mark"""

    mark: str
    letter: str
    text: str

    def insert(self, translation: str, *, is_spaced: bool) -> str:
        """Return a translation with the mark. is_spaced: its language has spaces between words"""
        if not is_spaced and self.letter.lower() not in translation.lower():
            return f"{translation}({self.mark}{self.letter.upper()})"
        codes = _list_code_positions(translation)
        letters = [position for position, character in enumerate(translation) if character.isalpha() and position not in codes]
        same = [position for position in letters if translation[position].lower() == self.letter.lower()]
        at_starts = [position for position in same if not translation[position - 1 : position].isalpha()]
        places = at_starts or same or letters
        return translation[: places[0]] + self.mark + translation[places[0] :] if places else translation


def find_accelerator(text: str, rules: InlineRules) -> Accelerator | None:
    """Return the accelerator of a text, or None. A text with two marks has none, and one inside a word needs a rule."""
    if "&" not in text and "_" not in text:
        return None
    codes = _list_code_positions(text)
    matches = list(_WORD_START.finditer(text))
    for mark in sorted(rules.enabled & _INSIDE.keys()):
        matches += _INSIDE[mark].finditer(text)
    places = [match.start() for match in matches if match.start() not in codes]
    if len(places) != 1:
        return None
    place = places[0]
    return Accelerator(text[place], text[place + 1], text[:place] + text[place + 1 :])


def _list_code_positions(text: str) -> set[int]:
    """Return the positions of the characters of all placeholders."""
    return {position for start, end in find_placeholders(text) for position in range(start, end)}
