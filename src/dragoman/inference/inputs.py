"""Sources with given translations of them, as ids: what forced scoring and alignment read."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.errors import DataError
from dragoman.tasks.translation import has_text


def check_lines(verb: str, lines: Sequence[str], *, start_index: int = 0, example: str = "[text]") -> None:
    """Raise TypeError where these are not lines of text, of which the first has the number `first`, counted from 0."""
    if isinstance(lines, str):
        raise TypeError(f"{verb} takes a list of lines: write {verb}({example})")
    for line_number, line in enumerate(lines, start=start_index + 1):
        if not isinstance(line, str):
            raise TypeError(f"{verb}: line {line_number}: {line!r:.40} is no text, but {type(line).__name__}")


def encode_pairs(
    verb: str,
    tokenizer: PairTokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    max_tokens: int,
    allow_empty: bool = False,
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of both sides, of which none is too long, and no source is without text unless it may be `blank`.

    Raises DataError, which says by `verb` what cannot be done.
    """
    for lines in (sources, targets):
        check_lines(verb, lines, example="[source], [target]")
    if len(sources) != len(targets):
        raise DataError(f"{len(sources)} sources but {len(targets)} translations: line n of one belongs to line n of the other")
    source_ids = [tokenizer.encode_source(text) for text in sources]
    target_ids = [tokenizer.encode_target(text) for text in targets]
    for line_number, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True), start=1):
        if not allow_empty and not has_text(text, source):
            raise DataError(f"line {line_number}: the source holds no text, so no translation of it can be {verb}d")
        if max(len(source), len(target) + 1) > max_tokens:
            raise DataError(f"line {line_number}: more than the {max_tokens} tokens that the model can {verb}")
    return source_ids, target_ids
