"""Checks of the caller's lines, and encoding of sentence pairs for forced scoring and alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import DataError
from dragoman.runtime.counts import format_count
from dragoman.tasks.translation import has_text


def list_lines(verb: str, lines: Iterable[str], *, start_index: int = 0, example: str = "[text]") -> list[str]:
    """Return lines of text as a list. Raises TypeError for anything else.

    verb: name of the called method, for the message
    start_index: index of the first line in its text, counted from 0
    example: correct arguments, for the message
    """
    if isinstance(lines, str):
        raise TypeError(f"{verb}: a list of lines is needed, not a text; write {verb}({example})")
    listed = list(lines)
    for line_number, line in enumerate(listed, start=start_index + 1):
        if not isinstance(line, str):
            raise TypeError(f"{verb}: line {line_number}: {line!r:.40} is of type {type(line).__name__}; give a text")
    return listed


def encode_pairs(
    verb: str,
    tokenizer: PairTokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    max_tokens: int,
    allow_empty: bool = False,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of both sides.

    verb: name of the called method, for messages
    max_tokens: most tokens of a side, end token included
    allow_empty: accept sources without text
    Raises DataError for sides of different lengths, an empty source, and a pair that is too long.
    """
    source_ids, target_ids = _encode_sides(verb, tokenizer, sources, targets)
    for line_number, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True), start=1):
        if not allow_empty and not has_text(text, source):
            raise DataError(f"line {line_number}: the source has no text, so {verb} cannot use it; remove the line")
        if (length := _get_length(source, target)) > max_tokens:
            raise DataError(f"line {line_number}: has {length} tokens, and {verb} takes {max_tokens} at most; shorten it")
    return source_ids, target_ids


def find_unfit_pairs(
    verb: str, tokenizer: PairTokenizer, sources: Sequence[str], targets: Sequence[str], *, max_tokens: int
) -> dict[int, str]:
    """Return the reason of each pair that `encode_pairs` refuses, by its index. Raises DataError for different lengths."""
    reasons: dict[int, str] = {}
    source_ids, target_ids = _encode_sides(verb, tokenizer, sources, targets)
    for index, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True)):
        if not has_text(text, source):
            reasons[index] = "the source has no text"
        elif _get_length(source, target) > max_tokens:
            reasons[index] = f"they have more than {max_tokens} tokens"
    return reasons


def _encode_sides(
    verb: str, tokenizer: PairTokenizer, sources: Sequence[str], targets: Sequence[str]
) -> tuple[list[list[int]], list[list[int]]]:
    for lines in (sources, targets):
        list_lines(verb, lines, example="[source], [target]")
    if len(sources) != len(targets):
        counts = f"{format_count(len(sources), 'source')} but {format_count(len(targets), 'translation')}"
        raise DataError(f"{counts}; give one translation for each source")
    return [tokenizer.encode_source(text) for text in sources], [tokenizer.encode_target(text) for text in targets]


def _get_length(source: Sequence[int], target: Sequence[int]) -> int:
    """Return the tokens of the longer side, with the end token of the target."""
    return max(len(source), len(target) + 1)
