"""Lexical constraints on one translation: as text from the caller, and as tokens for the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.decoding.constraints import NO_SENTENCE_CONSTRAINTS, SentenceConstraints
from dragoman.decoding.phrase import Phrase, PhraseGroup
from dragoman.errors import DataError
from dragoman.inference.phrase_encoder import PhraseEncoder
from dragoman.runtime.counts import format_count
from dragoman.text.marks import list_marks

CONSTRAINT_KEYS = ("prefix", "include", "exclude", "include_any")


@dataclass(frozen=True)
class TranslationConstraints:
    """Lexical constraints on one translation.

    A translation contains a phrase if its text holds it, also inside a word. The tokenizer normalizes phrases as it normalizes
    texts. `Translation.unmet_constraints` names the phrases that the search could not place or avoid, and the first phrase of
    a group that it could not place.

    prefix: text that the translation starts with
    include: phrases that the translation must contain (beam search only)
    exclude: phrases that the translation must not contain
    include_any: groups of phrases. The translation must contain one phrase of each, such as one form of a word (beam search
        only).
    terms: groups of phrases as in include_any, which count only where a word begins, if the language separates words by spaces
    skip_infeasible: leave out the constraints that no search can meet, rather than raise DataError
    keep_marks: the marks of placeholders in the text, `⟦0⟧` to `⟦31⟧`, are reserved tokens, and the translation contains each
        exactly once; a text has each once at most
    """

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include_any: tuple[tuple[str, ...], ...] = ()
    terms: tuple[tuple[str, ...], ...] = ()
    skip_infeasible: bool = False
    keep_marks: bool = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name}: a sequence of phrases is needed, not a text; write {name}=({getattr(self, name)!r},)")
        groups: Any = self.include_any
        if isinstance(groups, str) or any(isinstance(group, str) or not group for group in groups):
            raise TypeError(
                f"include_any: groups of phrases are needed, not {self.include_any!r}; write (('a form', 'another'),)"
            )

    def to_token_constraints(self, encoder: PhraseEncoder, *, location: str, is_spaced: bool) -> SentenceConstraints:
        """Return the constraints for the search.

        is_spaced: the target language separates words by spaces

        Raises DataError, which begins with `location`, for a phrase without text or with unknown characters.
        """
        include = [encoder.encode_included(phrase, f"{location}: include", is_spaced=is_spaced) for phrase in self.include]
        for group in self.include_any:
            include += self._encode_group(group, encoder, f"{location}: include_any", is_spaced=is_spaced)
        for group in self.terms:
            include += self._encode_group(group, encoder, f"{location}: terms", is_spaced=is_spaced, begins_words=is_spaced)
        return SentenceConstraints(
            prefix=encoder.encode_prefix(self.prefix, f"{location}: prefix") if self.prefix else (),
            include=tuple(include),
            exclude=tuple(encoder.encode_excluded(phrase, f"{location}: exclude") for phrase in self.exclude),
        )

    def _encode_group(
        self, group: Sequence[str], encoder: PhraseEncoder, location: str, *, is_spaced: bool, begins_words: bool = False
    ) -> Iterator[PhraseGroup]:
        """Yield the phrases of a group with all their forms; nothing if the search can place none."""
        phrases: list[Phrase] = []
        for phrase in group:
            try:
                forms = encoder.encode_included(phrase, location, is_spaced=is_spaced)
            except DataError:
                if not self.skip_infeasible:
                    raise
            else:
                phrases += forms[-1:] if begins_words else forms
        if phrases:
            yield tuple(dict.fromkeys(phrases))

    def find_unmet(self, text: str, encoder: PhraseEncoder) -> tuple[str, ...]:
        """Return the phrases that a translation should contain and does not, then those that it contains and should not."""

        def holds(phrase: str) -> bool:
            return encoder.normalize(phrase) in text

        return (
            *(phrase for phrase in self.include if not holds(phrase)),
            *(group[0] for group in (*self.include_any, *self.terms) if not any(map(holds, group))),
            *(phrase for phrase in self.exclude if holds(phrase)),
        )


def tokenize_constraints(
    constraints: Sequence[TranslationConstraints | None],
    segments_by_line: Sequence[Sequence[str]],
    config: DecodingConfig,
    encoder: PhraseEncoder,
    *,
    is_spaced: bool,
    marked_target: Vocabulary | None = None,
    max_positions: int | None,
    start_index: int,
) -> list[SentenceConstraints]:
    """Return the constraints of each segment of each line, as tokens.

    is_spaced: the target language separates words by spaces
    marked_target: vocabulary whose pieces include the marks of placeholders; None if no such vocabulary exists
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
            else line_constraints.to_token_constraints(encoder, location=f"line {line_number}", is_spaced=is_spaced)
        )
        marks: list[tuple[int, ...]] = [()] * len(segments)
        if line_constraints is not None and line_constraints.keep_marks:
            marks = _encode_marks(segments, marked_target, location=f"line {line_number}")
        whole = replace(token_constraints, exactly_once=marks[0]) if len(segments) == 1 else token_constraints
        try:
            _check_feasible(whole, segments, config, max_positions, line_number)
        except DataError:
            if line_constraints is None or not line_constraints.skip_infeasible:
                raise
            token_constraints = NO_SENTENCE_CONSTRAINTS
        results += [replace(token_constraints, exactly_once=segment_marks) for segment_marks in marks]
    return results


def _encode_marks(segments: Sequence[str], target: Vocabulary | None, *, location: str) -> list[tuple[int, ...]]:
    """Return the reserved tokens of the marks of each segment.

    Raises DataError if the vocabulary has none, or if a mark stands twice in the line.
    """
    if target is None:
        raise DataError(
            f"{location}: keep_marks needs reserved tokens, which the vocabulary of this bundle does not have; leave it out",
            code="invalid-constraints",
        )
    repeated = [mark for mark, count in Counter(list_marks("".join(segments))).items() if count > 1]
    if repeated:
        raise DataError(
            f"{location}: {repeated[0]} stands twice in the text; give each placeholder a number of its own",
            code="invalid-constraints",
        )
    return [
        tuple(token for mark in list_marks(segment) if (token := target.piece_to_id(mark)) is not None) for segment in segments
    ]


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
    include, exclude = (_parse_phrases(document.get(key, []), f"{location}: {key}") for key in ("include", "exclude"))
    groups = document.get("include_any", [])
    if not isinstance(groups, list) or not all(groups):
        raise DataError(
            f"{location}: include_any = {groups!r} is not a list of lists of texts; give one list for each group of phrases",
            code="invalid-constraints",
        )
    include_any = tuple(_parse_phrases(group, f"{location}: include_any") for group in groups)
    return TranslationConstraints(prefix, include, exclude, include_any)


def _parse_phrases(phrases: Any, location: str) -> tuple[str, ...]:
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise DataError(f"{location} = {phrases!r} is not a list of texts; give a list of texts", code="invalid-constraints")
    return tuple(phrases)
