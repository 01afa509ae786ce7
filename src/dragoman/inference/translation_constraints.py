"""Lexical constraints on one translation: as text from the caller, and as tokens for the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.decoding.constraints import NO_SENTENCE_CONSTRAINTS, SentenceConstraints
from dragoman.errors import DataError
from dragoman.runtime.counts import format_count

CONSTRAINT_KEYS = ("prefix", "include", "exclude")


@dataclass(frozen=True)
class TranslationConstraints:
    """Lexical constraints on one translation.

    prefix: text that the translation starts with
    include: phrases that the translation must contain (beam search only); `Translation.unmet_constraints` names the phrases
        that the search could not place
    exclude: phrases that the translation must not contain, in the tokenizer's own segmentation
    """

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name}: a sequence of phrases is needed, not a text; write {name}=({getattr(self, name)!r},)")

    def to_token_constraints(self, target: Vocabulary, *, location: str) -> SentenceConstraints:
        """Return the constraints as tokens.

        Raises DataError, which begins with `location`, for a phrase without text or with unknown characters.
        """
        return SentenceConstraints(
            prefix=_encode_phrase(self.prefix, target, f"{location}: prefix") if self.prefix else (),
            include=tuple(_encode_phrase(phrase, target, f"{location}: include") for phrase in self.include),
            exclude=tuple(_encode_phrase(phrase, target, f"{location}: exclude") for phrase in self.exclude),
        )


def _encode_phrase(phrase: str, target: Vocabulary, location: str) -> tuple[int, ...]:
    tokens = tuple(target.encode(phrase))
    if not tokens:
        raise DataError(f"{location}: {phrase!r} has no text; remove it", code="invalid-constraints")
    if UNKNOWN_ID in tokens:
        raise DataError(
            f"{location}: {phrase!r} has characters that the target tokenizer does not know; remove them",
            code="invalid-constraints",
        )
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
    """Return the constraints of each segment of each line, as tokens.

    max_positions: most tokens of an output; None if positions never end
    start_index: index of the first line in its text, counted from 0
    Raises DataError for constraints that no search can meet.
    """
    if len(constraints) != len(segments_by_line):
        counts = f"{format_count(len(segments_by_line), 'line')} but {format_count(len(constraints), 'constraint')}"
        raise DataError(f"{counts}; give one for each line", code="invalid-constraints")
    results = []
    for line_number, (line_constraints, segments) in enumerate(
        zip(constraints, segments_by_line, strict=True), start=start_index + 1
    ):
        if not isinstance(line_constraints, TranslationConstraints | None):
            raise TypeError(f"line {line_number}: {line_constraints!r} is not a TranslationConstraints; give one, or None")
        token_constraints = (
            NO_SENTENCE_CONSTRAINTS
            if line_constraints is None
            else line_constraints.to_token_constraints(target, location=f"line {line_number}")
        )
        _check_feasible(token_constraints, segments, config, max_positions, line_number)
        results += [token_constraints] * len(segments)
    return results


def _check_feasible(
    constraints: SentenceConstraints,
    segments: Sequence[str],
    config: DecodingConfig,
    max_positions: int | None,
    line_number: int,
) -> None:
    """Raise DataError for constraints that no search can meet."""
    if constraints != NO_SENTENCE_CONSTRAINTS and len(segments) > 1:
        raise DataError(
            f"line {line_number}: has constraints, but is longer than the model reads and translated in segments; shorten it",
            code="invalid-constraints",
        )
    if constraints.include and config.method != "beam":
        raise DataError(
            f"line {line_number}: include needs method = 'beam', not {config.method!r}; change the method",
            code="invalid-constraints",
        )
    if constraints.include and config.num_beam_groups > 1:
        raise DataError(
            f"line {line_number}: include needs num_beam_groups = 1, not {config.num_beam_groups}; set it to 1",
            code="invalid-constraints",
        )
    if max_positions is not None and constraints.required_tokens > max_positions:
        raise DataError(
            f"line {line_number}: the constraints need {constraints.required_tokens} tokens, and the model has positions for "
            f"{max_positions}; shorten them",
            code="invalid-constraints",
        )


def parse_constraints(document: Any, *, location: str) -> TranslationConstraints:
    """Return the constraints of a JSON object such as {"prefix": "Das", "include": ["Haus"], "exclude": ["Gebäude"]}.

    Every key is optional. Raises DataError, which begins with `location`, for anything else.
    """
    if not isinstance(document, Mapping) or (unknown_keys := sorted(map(str, document.keys() - set(CONSTRAINT_KEYS)))):
        problem = f"key {unknown_keys[0]!r}" if isinstance(document, Mapping) else f"{document!r}"
        raise DataError(
            f"{location}: {problem} is not allowed; give an object with {', '.join(CONSTRAINT_KEYS)}",
            code="invalid-constraints",
        )
    prefix = document.get("prefix", "")
    if not isinstance(prefix, str):
        raise DataError(f"{location}: prefix = {prefix!r} is not a text; give a text", code="invalid-constraints")
    phrase_lists = []
    for key in CONSTRAINT_KEYS[1:]:
        phrases = document.get(key, [])
        if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
            raise DataError(
                f"{location}: {key} = {phrases!r} is not a list of texts; give a list of texts", code="invalid-constraints"
            )
        phrase_lists.append(tuple(phrases))
    return TranslationConstraints(prefix, *phrase_lists)
