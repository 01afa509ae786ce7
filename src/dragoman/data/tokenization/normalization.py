"""Unicode normalization of text before it is split, as SentencePiece models hold it.

    identity   each character stays
    nfc        NFC of Unicode Standard Annex 15, and a plain space for every space (category Zs)
    nfkc       SentencePiece's `nmt_nfkc`: NFKC, and a plain space for invisible characters

A rule is a map from strings to strings, so `nfc` leaves accents that stand in another than the canonical order.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import sentencepiece as spm

from dragoman.config import Normalization

# The last code point that NFC changes is U+2FA1D, and the last space is U+3000.
_LAST_CHANGED_CODE_POINT = 0x2FA1D
_SURROGATES = range(0xD800, 0xE000)
_ERRORS_ONLY = 2


def normalize(text: str, normalization: Normalization) -> str:
    return text if normalization == "identity" else str(_build_normalizer(normalization).normalize(text))


def serialize_rule(normalization: Normalization) -> bytes:
    """Return SentencePiece's compiled map of a rule, in a NormalizerSpec message; empty for `identity`."""
    return b"" if normalization == "identity" else bytes(_build_normalizer(normalization).serialized_normalizer_spec())


@lru_cache
def _build_normalizer(normalization: Normalization) -> spm.SentencePieceNormalizer:
    spm.set_min_log_level(_ERRORS_ONLY)  # the compilation of a rule writes messages to standard error
    is_nfkc = normalization == "nfkc"
    return spm.SentencePieceNormalizer(
        rule_name="nmt_nfkc" if is_nfkc else None,
        norm_map=None if is_nfkc else list(_list_nfc_changes().items()),
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )


def _list_nfc_changes() -> dict[str, str]:
    """Return each character that is not in NFC, each sequence that composes to one character, and each space."""
    changes: dict[str, str] = {}
    for code_point in range(0x80, _LAST_CHANGED_CODE_POINT + 1):
        if code_point in _SURROGATES:
            continue
        character = chr(code_point)
        composed = unicodedata.normalize("NFC", character)
        decomposed = unicodedata.normalize("NFD", character)
        if unicodedata.category(character) == "Zs":
            changes[character] = " "
        elif decomposed != character:
            prefixes = range(1, len(decomposed) + 1)
            forms = {unicodedata.normalize("NFC", decomposed[:end]) + decomposed[end:] for end in prefixes} | {decomposed}
            changes |= {form: composed for form in forms | {character} if form != composed}
    return changes
