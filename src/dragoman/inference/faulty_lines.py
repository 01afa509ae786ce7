"""Second translation of lines whose translation lost a number, an address, a sign or its end: as whole texts, which keep them.

A model writes characters without pieces as bytes or as the unknown token, and often loses them. Whole texts mark them instead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.inference.translation_result import Translation
from dragoman.text.currency_signs import loses_currency

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator

_LOST = frozenset(("numbers", "urls", "emails"))
_INCOMPLETE: frozenset[str] = frozenset(("empty", "short", "truncated"))
_MAY_LOSE = re.compile(r"[^\x00-\x7f]|[\d@]|://")


def loses_sign(line: str, translation: str) -> bool:
    """Return whether a translation lost the sign of a currency, an emoji, an arrow or another symbol of its line."""
    return loses_currency(line, translation) or not _find_symbols(line) <= _find_symbols(translation)


def translate_faulty_lines(
    translator: Translator, lines: Sequence[str], results: Sequence[Translation], decoding: Mapping[str, Any]
) -> list[Translation]:
    """Return the results, but for lines that are better as whole texts. decoding: options of the first translation"""
    target_language = translator.resolve_decoding(decoding).target_language or translator.recipe.task.target_language
    reads = translator.bundle.tokenizer.reads
    better, faults = list(results), {}
    for index, (line, result) in enumerate(zip(lines, results, strict=True)):
        losses = _find_faults(line, result, target_language)
        if losses or not (line.isascii() or reads(line)):
            faults[index] = losses
    if faults:
        texts = translator.translate_texts([lines[index] for index in faults], **decoding)
        for (index, losses), text in zip(faults.items(), texts, strict=True):
            result = text.to_line()
            num_faults = len(_find_faults(lines[index], result, target_language))
            if num_faults < len(losses) or num_faults == 0:
                better[index] = result
    return better


def _find_faults(line: str, result: Translation, target_language: str) -> set[str]:
    """Return what a translation lost, and its status if it is not whole."""
    faults: set[str] = {*_INCOMPLETE.intersection((result.status,))}
    if not _MAY_LOSE.search(line):
        return faults
    from dragoman.text.guards import check_translation  # most lines have nothing that a translation loses

    faults.update(check for check in check_translation(line, result.text, target_language) if check in _LOST)
    return faults | ({"signs"} if loses_sign(line, result.text) else set())


def _find_symbols(text: str) -> set[str]:
    """Return the emoji, arrows and other symbols of a text, without those that languages write as letters."""
    symbols = "" if text.isascii() else text
    return {character for character in symbols if unicodedata.category(character) == "So"} - {"\u2116"}
