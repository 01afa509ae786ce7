"""Units of a document that are translated: by their state, by their keys, and by whether they hold language."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from html import unescape
from typing import Literal

from dragoman.documents.document import Document, Unit
from dragoman.documents.icu_message import has_argument, has_branches
from dragoman.languages import have_common_texts, is_foreign
from dragoman.text.accelerators import find_accelerator
from dragoman.text.inline_codes import read_inline
from dragoman.text.inline_rules import infer_rules
from dragoman.text.no_language import begins_with_word, has_language, is_data

Scope = Literal["empty", "fuzzy", "all"]
"""Units to translate: those without a translation, also those with a fuzzy one, or all that are not locked."""


@dataclass(frozen=True)
class KeyGlobs:
    """Patterns of keys, such as `app.*.title`, in which `*` stands for any characters.

    Attributes:
        take: translate values under these keys alone, also those that look like data; empty for all that are language
        skip: leave values under these keys as they are
    """

    take: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def selects(self, unit: Unit) -> bool:
        """Return whether the value of a unit is to be translated. A unit without a key is left out if keys are to be taken."""
        if _matches(unit.key, self.skip) or (self.take and not _matches(unit.key, self.take)):
            return False
        return not unit.key or bool(self.take) or not is_data(_remove_accelerator(unit), unit.key)


ALL_KEYS = KeyGlobs()


def _remove_accelerator(unit: Unit) -> str:
    """Return the text of a label without its accelerator, with which `_Open` and `E_xit` look like names of a program."""
    is_label = "_" in unit.rules.enabled and unit.source.lstrip("_")[:1].isupper()
    accelerator = find_accelerator(unit.source, unit.rules) if is_label else None
    return unit.source if accelerator is None else accelerator.text


def _matches(key: str, globs: tuple[str, ...]) -> bool:
    return bool(key) and any(fnmatchcase(key, glob) for glob in globs)


def is_selected(unit: Unit, scope: Scope, source_language: str = "", target_language: str = "") -> bool:
    """Return whether the state of a unit is one of a scope. A unit that states other languages than these is not.

    A unit is also left out if it is locked for the target language.
    """
    if is_foreign(unit.language, source_language) or is_foreign(unit.target_language, target_language):
        return False
    if any(have_common_texts(code, target_language) for code in unit.locked_languages):
        return False
    match scope:
        case "empty":
            return unit.state == "untranslated"
        case "fuzzy":
            return unit.state in ("untranslated", "fuzzy")
        case "all":
            return unit.state != "locked"


def list_selected(
    document: Document, scope: Scope, keys: KeyGlobs = ALL_KEYS, source_language: str = "", target_language: str = ""
) -> list[Unit]:
    """Return the units to translate. A unit without language stays, unless its file has a place for a translation."""
    return [
        unit
        for unit in document.units
        if is_selected(unit, scope, source_language, target_language)
        and keys.selects(unit)
        and (document.is_bilingual or unit_has_language(unit))
    ]


def count_texts(document: Document, keys: KeyGlobs = ALL_KEYS, target_language: str = "") -> int:
    """Return the number of units that hold language, without translations into another language than this."""
    units = (unit for unit in document.units if not is_foreign(unit.target_language, target_language))
    return sum(document.is_bilingual or keys.selects(unit) for unit in units)


def is_message(unit: Unit) -> bool:
    """Return whether a unit has branches, or arguments between which Java reads two apostrophes as one."""
    return has_branches(unit.source) or ("apostrophes" in unit.rules.enabled and has_argument(unit.source))


def unit_has_language(unit: Unit) -> bool:
    """Return whether the text of a unit has words, or an amount, beside its codes."""
    if has_branches(unit.source) or begins_with_word(unit.source, unit.rules.kept):
        return True
    return has_language(read_inline(unit.source, unit.markup, unit.rules))


def add_common_rules(document: Document) -> Document:
    """Return the document, whose units have the rules that its texts have in common."""
    has_names = document.is_bilingual or any(unit.key for unit in document.units)
    units = (unit for unit in document.units if has_names or unit.markup == "none")
    names = infer_rules(((_unescape(unit, unit.source), _unescape(unit, unit.target)) for unit in units), has_names=has_names)
    if not names:
        return document
    document_units = [replace(unit, rules=unit.rules.enable(*names)) for unit in document.units]
    return replace(document, units=document_units)


def _unescape(unit: Unit, text: str) -> str:
    """Return a text of a unit without character references, if those of its markup are characters."""
    return text if unit.markup == "none" else unescape(text)
