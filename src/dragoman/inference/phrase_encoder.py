"""Encoder of phrases for a search: text of the caller to `Phrase`, which finds the phrase in any tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate

from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.decoding.phrase import Phrase, PhraseGroup
from dragoman.errors import DataError

_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
_END = b"\xff"
"""Byte that no text in UTF-8 has. It is greater than all others, and separates pieces."""


class PhraseEncoder:
    """Encoder of phrases into the pieces of a target vocabulary."""

    def __init__(self, target: TextTokenizer) -> None:
        self.target = target

    def normalize(self, phrase: str) -> str:
        """Return a phrase as an output would hold it: in the normalization, case and white space of the tokenizer."""
        return self.target.decode(self.target.encode(phrase))

    def encode_prefix(self, prefix: str, location: str) -> tuple[int, ...]:
        """Return the ids of the start of an output. Raise DataError as `encode_phrase` does."""
        return self._check(prefix, self.target.encode(prefix), location)

    def encode_excluded(self, phrase: str, location: str) -> Phrase:
        """Return a phrase that an output must not contain. Raise DataError as `encode_phrase` does."""
        return self._build_phrase(self.normalize(phrase), self._check(phrase, self.target.encode(phrase), location))

    def encode_included(self, phrase: str, location: str, *, is_spaced: bool) -> PhraseGroup:
        """Return a phrase of which an output must contain one form: without a space before it, or, as the last form, with one.

        is_spaced: the language separates words by spaces. If not, a search places the form with the space only at the start of
            an output, where the space is not a part of the text.

        Raises DataError, which begins with `location`, for a phrase without text or with unknown characters.
        """
        text = self.normalize(phrase)
        at_start = self._check(phrase, self.target.encode(phrase), location)
        inside = tuple(self.target.encode_continuation(text))
        forms = [self._build_phrase(text, inside)] if UNKNOWN_ID not in inside else []
        if at_start != inside:
            forms.append(self._build_phrase(" " + text, at_start, only_first=not is_spaced))
        return tuple(forms)

    def _check(self, phrase: str, ids: list[int], location: str) -> tuple[int, ...]:
        if not ids:
            raise DataError(f"{location}: {phrase!r} has no text; remove it", code="invalid-constraints")
        if UNKNOWN_ID in ids:
            raise DataError(
                f"{location}: {phrase!r} has characters that the target tokenizer does not know; remove them",
                code="invalid-constraints",
            )
        return tuple(ids)

    def _build_phrase(self, text: str, tokens: tuple[int, ...], *, only_first: bool = False) -> Phrase:
        encoded = text.encode()
        ids = sorted({*tokens, *self._list_tokens(encoded)})
        return Phrase(encoded, tokens, {token: self._pieces[token] for token in ids}, only_first)

    def _list_tokens(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that hold a phrase, are a part of it, end with its start, or start with its end."""
        yield from self._find_holding(text)
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + self._longest) + 1):
                yield from self._find_starting(self._forward, text[start:end] + _END)
        for length in range(1, min(len(text), self._longest + 1)):
            yield from self._find_starting(self._backward, text[:length][::-1])
            yield from self._find_starting(self._forward, text[-length:])

    def _find_holding(self, text: bytes) -> Iterator[int]:
        """Yield the tokens whose text holds this text."""
        position = self._joined.find(text)
        while position >= 0:
            token = bisect_right(self._starts, position) - 1
            yield token
            position = self._joined.find(text, self._starts[token + 1])

    @staticmethod
    def _find_starting(table: tuple[list[bytes], list[int]], prefix: bytes) -> Iterator[int]:
        """Yield the tokens of a sorted table whose text starts with a prefix."""
        texts, ids = table
        yield from ids[bisect_left(texts, prefix) : bisect_right(texts, prefix + _END)]

    @cached_property
    def _pieces(self) -> list[bytes]:
        """Text of each token; empty for those that no text is encoded to. A space is a part of the text of its token."""
        pieces = self.target.ids_to_pieces(range(len(self.target)))
        silent_ids = {*SPECIAL_IDS, *self.target.reserved_ids}
        return [
            b""
            if index in silent_ids
            else bytes([int(match[1], 16)])
            if (match := _BYTE_PIECE.fullmatch(piece)) is not None
            else piece.replace(METASPACE, " ").encode()
            for index, piece in enumerate(pieces)
        ]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._pieces))

    @cached_property
    def _joined(self) -> bytes:
        return b"".join(piece + _END for piece in self._pieces)

    @cached_property
    def _starts(self) -> list[int]:
        """Offset of each piece in the joined text, and the length of that."""
        return list(accumulate((len(piece) + 1 for piece in self._pieces), initial=0))

    @cached_property
    def _forward(self) -> tuple[list[bytes], list[int]]:
        """Pieces in order, each with a mark of its end, and their ids."""
        return self._sort([piece + _END for piece in self._pieces])

    @cached_property
    def _backward(self) -> tuple[list[bytes], list[int]]:
        """Reversed pieces in order, and their ids."""
        return self._sort([piece[::-1] for piece in self._pieces])

    @staticmethod
    def _sort(texts: list[bytes]) -> tuple[list[bytes], list[int]]:
        ids = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[index] for index in ids], ids
