"""What somebody asks of the wording of one translation: text, and the tokens that a search understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.decoding.constraints import NO_SENTENCE_CONSTRAINTS, SentenceConstraints
from dragoman.errors import DataError

CONSTRAINT_KEYS = ("prefix", "include", "exclude")


@dataclass(frozen=True)
class TranslationConstraints:
    """prefix: how the translation begins
    include: phrases that it holds, which beam search can place; those that it could not are named in `Translation.missing`
    exclude: phrases that it does not hold, written as the subword model writes them
    """

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} takes phrases: write {name}=({getattr(self, name)!r},)")

    def to_token_constraints(self, target: Vocabulary, *, location: str) -> SentenceConstraints:
        """As tokens. Raises DataError, which begins with `where`, for a phrase without text or with unknown characters."""
        return SentenceConstraints(
            prefix=_encode_phrase(self.prefix, target, f"{location}: prefix") if self.prefix else (),
            include=tuple(_encode_phrase(phrase, target, f"{location}: include") for phrase in self.include),
            exclude=tuple(_encode_phrase(phrase, target, f"{location}: exclude") for phrase in self.exclude),
        )


def _encode_phrase(phrase: str, target: Vocabulary, location: str) -> tuple[int, ...]:
    tokens = tuple(target.encode(phrase))
    if not tokens:
        raise DataError(f"{location}: {phrase!r} holds no text")
    if UNKNOWN_ID in tokens:
        raise DataError(f"{location}: {phrase!r} holds characters that the target's subword model does not know")
    return tokens


def tokenize_constraints(
    constraints: Sequence[TranslationConstraints | None],
    segments_by_line: Sequence[Sequence[str]],
    config: DecodingConfig,
    target: Vocabulary,
    *,
    max_positions: int | None,
    start_index: int,
) -> list[SentenceConstraints]:
    """What is asked of each line, as tokens, one for each part of it. Raises DataError for what nobody could fulfil.

    positions: how many tokens the model can say; none where they never end
    first: the number of the first line, counted from 0
    """
    if len(constraints) != len(segments_by_line):
        raise DataError(
            f"{len(segments_by_line)} lines but {len(constraints)} wordings: line n of one belongs to line n of the other"
        )
    results = []
    for line_number, (line_constraints, segments) in enumerate(
        zip(constraints, segments_by_line, strict=True), start=start_index + 1
    ):
        if not isinstance(line_constraints, TranslationConstraints | None):
            raise TypeError(f"line {line_number}: {line_constraints!r} is no Wording")
        token_constraints = (
            NO_SENTENCE_CONSTRAINTS
            if line_constraints is None
            else line_constraints.to_token_constraints(target, location=f"line {line_number}")
        )
        if token_constraints != NO_SENTENCE_CONSTRAINTS and len(segments) > 1:
            raise DataError(f"line {line_number}: is translated in parts, so that nothing can be asked of its wording")
        if token_constraints.include and config.method != "beam":
            raise DataError(f"line {line_number}: include needs method = 'beam', not {config.method!r}")
        if token_constraints.include and config.num_beam_groups > 1:
            raise DataError(f"line {line_number}: include needs groups = 1, not {config.num_beam_groups}")
        if max_positions is not None and token_constraints.required_tokens > max_positions:
            raise DataError(
                f"line {line_number}: what is asked for takes {token_constraints.required_tokens} tokens; the model says {max_positions}"
            )
        results += [token_constraints] * len(segments)
    return results


def parse_constraints(document: Any, *, location: str) -> TranslationConstraints:
    """From an object such as {"prefix": "Das", "include": ["Haus"], "exclude": ["Gebäude"]}; every key may be left out.

    Raises DataError, which begins with `where`, for anything else.
    """
    if not isinstance(document, Mapping) or (unknown_keys := sorted(map(str, document.keys() - set(CONSTRAINT_KEYS)))):
        problem = f"key {unknown_keys[0]!r}" if isinstance(document, Mapping) else f"{document!r}"
        raise DataError(f"{location}: {problem}: an object with {', '.join(CONSTRAINT_KEYS)} is allowed")
    prefix = document.get("prefix", "")
    if not isinstance(prefix, str):
        raise DataError(f"{location}: prefix = {prefix!r}: a text is allowed")
    phrase_lists = []
    for key in CONSTRAINT_KEYS[1:]:
        phrases = document.get(key, [])
        if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
            raise DataError(f"{location}: {key} = {phrases!r}: a list of texts is allowed")
        phrase_lists.append(tuple(phrases))
    return TranslationConstraints(prefix, *phrase_lists)
