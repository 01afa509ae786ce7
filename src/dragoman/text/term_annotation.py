"""Terms inside a source: each is followed by the translation that the output must use.

    The⟦t⟧ network⟦=⟧ Netz⟦/t⟧ is closed.

The marks stand for reserved tokens of the vocabulary, one id each. Training annotates a share of its pairs (the noise type
`terminology`), and translation with a glossary annotates in the same way. A bundle reads annotations if its recipe has
`data.noise.terminology` above 0. The translation inside an annotation is a dictionary form, and the model inflects it
(Bergmanis and Pinnis 2021). Annotations go into the source only: an output has no marks.

A mark stands before a space, not behind it, so the words keep the pieces that they have in plain text.
`PairTokenizer.marked` encodes marks to reserved tokens; without it, marks are ordinary characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TERM_START, TERM_TRANSLATION, TERM_END = TERM_MARKS = ("⟦t⟧", "⟦=⟧", "⟦/t⟧")
"""Marks before a term of the source, before its translation, and behind that."""
PLACEHOLDER_MARKS = tuple(f"⟦{number}⟧" for number in range(32))
"""Marks of placeholders in a text; each stands for a reserved token of the vocabulary."""
_MARK = re.compile("⟦(?:t|=|/t|[0-9]{1,2})⟧")
_PLAIN = f"(?:(?!{TERM_START}|{TERM_TRANSLATION}|{TERM_END}).)*+"
_ANNOTATION = re.compile(f"{TERM_START}({_PLAIN}){TERM_TRANSLATION}{_PLAIN}{TERM_END}", re.DOTALL)


def has_marks(text: str) -> bool:
    """Return whether a text holds marks of terms or of placeholders. Such a text of a user is not annotated."""
    return _MARK.search(text) is not None


def annotate_terms(source: str, terms: Iterable[tuple[int, int, str]]) -> str:
    """Return the source with annotated terms, in any order.

    source: text without marks of terms
    terms: start, end and translation of each; positions count characters of the source, and the end is exclusive

    Raises ValueError for terms that overlap, are empty or exceed the source, and for a translation that is empty, has a line
    break or has marks.
    """
    pieces: list[str] = []
    position = 0
    for start, end, translation in sorted(terms):
        if not position <= start < end <= len(source):
            raise ValueError(f"the term from {start} to {end} is empty, exceeds the source or overlaps another")
        if not translation.strip() or len(translation.splitlines()) > 1 or has_marks(translation):
            raise ValueError(f"the translation {translation!r} is empty or has a line break or a mark")
        space = start - 1 if start > position and source[start - 1] == " " else start
        pieces += source[position:space], TERM_START, source[space:end], TERM_TRANSLATION, " ", translation.strip(), TERM_END
        position = end
    return "".join([*pieces, source[position:]])


def remove_annotations(text: str) -> str:
    """Return the text as it was before `annotate_terms`."""
    return _ANNOTATION.sub(r"\1", text)
