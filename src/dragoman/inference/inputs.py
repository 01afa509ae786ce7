"""Sources with given translations of them, as ids: what forced scoring and alignment read."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.errors import DataError
from dragoman.tasks.translation import holds_text


def check_lines(verb: str, lines: Sequence[str], *, first: int = 0, written: str = "[text]") -> None:
    """Raise TypeError where these are not lines of text, of which the first has the number `first`, counted from 0."""
    if isinstance(lines, str):
        raise TypeError(f"{verb} takes a list of lines: write {verb}({written})")
    for number, line in enumerate(lines, start=first + 1):
        if not isinstance(line, str):
            raise TypeError(f"{verb}: line {number}: {line!r:.40} is no text, but {type(line).__name__}")


def read_pairs(
    verb: str, tokeniser: Tokeniser, sources: Sequence[str], targets: Sequence[str], *, longest: int, blank: bool = False
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of both sides, of which none is too long, and no source is without text unless it may be `blank`.

    Raises DataError, which says by `verb` what cannot be done.
    """
    for lines in (sources, targets):
        check_lines(verb, lines, written="[source], [target]")
    if len(sources) != len(targets):
        raise DataError(f"{len(sources)} sources but {len(targets)} translations: line n of one belongs to line n of the other")
    source_ids = [tokeniser.encode_source(text) for text in sources]
    target_ids = [tokeniser.encode_target(text) for text in targets]
    for number, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True), start=1):
        if not blank and not holds_text(text, source):
            raise DataError(f"line {number}: the source holds no text, so no translation of it can be {verb}d")
        if max(len(source), len(target) + 1) > longest:
            raise DataError(f"line {number}: more than the {longest} tokens that the model can {verb}")
    return source_ids, target_ids
