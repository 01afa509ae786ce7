"""Sentences for a reviewer: what is wrong with the translation of a text."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.documents.document import Unit
from dragoman.text.code_check import compare_codes
from dragoman.text.glossary import GlossaryEntry
from dragoman.text.inline_codes import read_inline

_SENTENCES = {
    "numbers": "a number of the source is missing",
    "urls": "a web address of the source is missing",
    "emails": "a mail address of the source is missing",
    "xmltags": "the tags are others than those of the source",
    "printf": "the placeholders are others than those of the source",
    "variables": "the placeholders or branches are others than those of the source",
    "repetition": "the translation repeats itself, and the source does not",
    "length": "the translation is much shorter or longer than is usual for its source",
    "endpunc": "the translation ends like half a sentence",
    "untranslated": "the translation is a copy of the source",
    "script": "most letters are of another script than that of the language",
    "low_score": "the model is less sure than of nearly all texts of its calibration set",
    "terminology": "a term of the glossary is in the source, and its translation is not in the text",
    "newlines": "the line breaks at the start or the end are others than those of the source",
    "max_length": "the translation is longer than the file allows",
    "line_length": "the subtitle has more or longer lines than the options allow",
    "reading_speed": "the subtitle is shown too briefly for its length",
    "truncated": "the model did not come to an end",
    "too_long": "the model cannot read a text of this length",
    "empty": "the model gave no translation",
    "target_language": "the source is in the target language already, so the text stays as it is",
    "other_script": "the source is in a script of neither language, so the text stays as it is",
    "unwritable": "the file would have other texts or another structure with this translation, so the text stays as it is",
}
"""Sentence for each flag of a text."""


def describe_flags(unit: Unit, text: str, flags: tuple[str, ...], lacking: Sequence[GlossaryEntry] = ()) -> str:
    """Return one sentence for each flag of a translation, joined by semicolons; empty without a flag.

    text: the translation as it is in the file
    lacking: terms of the source whose translation the text does not have
    """
    if not flags:
        return ""
    if "target_language" in flags:  # the text is a copy because it stays
        flags = tuple(flag for flag in flags if flag != "untranslated")
    reasons = [
        f"the translation is longer than the {unit.max_length} characters that the file allows"
        if flag == "max_length" and unit.max_length is not None
        else _describe_terms(lacking)
        if flag == "terminology" and lacking
        else _SENTENCES[flag]
        for flag in flags
    ]
    if {"xmltags", "printf", "variables"}.intersection(flags):
        difference = compare_codes(*(read_inline(side, unit.markup, unit.rules) for side in (unit.source, text))).describe()
        codes = [_SENTENCES[flag] for flag in ("xmltags", "printf", "variables")]
        if difference:
            reasons = [difference, *(reason for reason in reasons if reason not in codes)]
    return "; ".join(dict.fromkeys(reasons))


def _describe_terms(entries: Sequence[GlossaryEntry]) -> str:
    terms = [
        f"{entry.source!r} is not translated as {' or '.join(map(repr, entry.targets or [entry.source]))}" for entry in entries
    ]
    return f"{', '.join(terms)}, which the glossary requires"
