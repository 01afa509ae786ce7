"""What somebody asks of the wording of one translation: text, and the tokens that a search understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.decoding.constraints import NO_WISH, Wish
from dragoman.errors import DataError

KEYS = ("prefix", "include", "exclude")


@dataclass(frozen=True)
class Wording:
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

    def wish(self, target: Vocabulary, *, where: str) -> Wish:
        """As tokens. Raises DataError, which begins with `where`, for a phrase without text or with unknown characters."""
        return Wish(
            prefix=_tokens(self.prefix, target, f"{where}: prefix") if self.prefix else (),
            include=tuple(_tokens(phrase, target, f"{where}: include") for phrase in self.include),
            exclude=tuple(_tokens(phrase, target, f"{where}: exclude") for phrase in self.exclude),
        )


def _tokens(phrase: str, target: Vocabulary, where: str) -> tuple[int, ...]:
    tokens = tuple(target.encode(phrase))
    if not tokens:
        raise DataError(f"{where}: {phrase!r} holds no text")
    if UNKNOWN_ID in tokens:
        raise DataError(f"{where}: {phrase!r} holds characters that the target's subword model does not know")
    return tokens


def wishes_of(
    wordings: Sequence[Wording | None],
    passages: Sequence[Sequence[str]],
    config: DecodingConfig,
    target: Vocabulary,
    *,
    positions: int | None,
    first: int,
) -> list[Wish]:
    """What is asked of each line, as tokens, one for each part of it. Raises DataError for what nobody could fulfil.

    positions: how many tokens the model can say; none where they never end
    first: the number of the first line, counted from 0
    """
    if len(wordings) != len(passages):
        raise DataError(f"{len(passages)} lines but {len(wordings)} wordings: line n of one belongs to line n of the other")
    wishes = []
    for number, (wording, parts) in enumerate(zip(wordings, passages, strict=True), start=first + 1):
        if not isinstance(wording, Wording | None):
            raise TypeError(f"line {number}: {wording!r} is no Wording")
        wish = NO_WISH if wording is None else wording.wish(target, where=f"line {number}")
        if wish != NO_WISH and len(parts) > 1:
            raise DataError(f"line {number}: is translated in parts, so that nothing can be asked of its wording")
        if wish.include and config.method != "beam":
            raise DataError(f"line {number}: include needs method = 'beam', not {config.method!r}")
        if wish.include and config.num_beam_groups > 1:
            raise DataError(f"line {number}: include needs groups = 1, not {config.num_beam_groups}")
        if positions is not None and wish.shortest > positions:
            raise DataError(f"line {number}: what is asked for takes {wish.shortest} tokens; the model says {positions}")
        wishes += [wish] * len(parts)
    return wishes


def wording_from_json(document: Any, *, where: str) -> Wording:
    """From an object such as {"prefix": "Das", "include": ["Haus"], "exclude": ["Gebäude"]}; every key may be left out.

    Raises DataError, which begins with `where`, for anything else.
    """
    if not isinstance(document, Mapping) or (unknown := sorted(map(str, document.keys() - set(KEYS)))):
        given = f"key {unknown[0]!r}" if isinstance(document, Mapping) else f"{document!r}"
        raise DataError(f"{where}: {given}: an object with {', '.join(KEYS)} is allowed")
    prefix = document.get("prefix", "")
    if not isinstance(prefix, str):
        raise DataError(f"{where}: prefix = {prefix!r}: a text is allowed")
    lists = []
    for key in KEYS[1:]:
        phrases = document.get(key, [])
        if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
            raise DataError(f"{where}: {key} = {phrases!r}: a list of texts is allowed")
        lists.append(tuple(phrases))
    return Wording(prefix, *lists)
