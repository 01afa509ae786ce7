"""Translation: text to ids, ids to text, and the scores that translations are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.config import DecodingConfig, Recipe
from dragoman.data.subword import END_ID, Tokeniser
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.evaluation.metrics import Score, bleu, chrf, exact_match, tokenised_bleu
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import Advance, generate, start_id

Status = Literal["ok", "unfinished", "empty", "too long"]


@dataclass(frozen=True)
class Translated:
    """What became of one line: its hypotheses, best first; none where it holds no text or is too long.

    status: "ok"; "unfinished" where the longest allowed length cut the best hypothesis; "empty"; "too long"
    """

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    status: Status


def holds_text(ids: Sequence[int]) -> bool:
    """Whether there is anything beside the end token."""
    return any(index != END_ID for index in ids)


def translate_lines(
    models: Sequence[Transformer],
    tokeniser: Tokeniser,
    lines: Sequence[str],
    recipe: Recipe,
    decoding: DecodingConfig,
    *,
    advance: Advance = lambda _: None,
) -> list[Translated]:
    """Translate each line, in order; a line without text, or one too long to read, has no hypotheses."""
    positions = recipe.model.max_positions if recipe.model.positions == "learned" else None
    longest = min(decoding.max_source, positions or decoding.max_source)
    sources = [tokeniser.encode_source(line) for line in lines]
    full = [index for index, source in enumerate(sources) if holds_text(source) and len(source) <= longest]
    advance(len(lines) - len(full))
    found = generate(
        models,
        [sources[index] for index in full],
        decoding,
        start_id=start_id(recipe.model),
        max_target=positions,
        advance=advance,
    )
    hypotheses = dict(zip(full, found, strict=True))
    return [_translated(source, hypotheses.get(index, [])) for index, source in enumerate(sources)]


def _translated(source: Sequence[int], hypotheses: Sequence[Hypothesis]) -> Translated:
    if hypotheses:
        return Translated(tuple(source), tuple(hypotheses), "ok" if hypotheses[0].finished else "unfinished")
    return Translated(tuple(source), (), "too long" if holds_text(source) else "empty")


def best_texts(translated: Sequence[Translated], tokeniser: Tokeniser) -> list[str]:
    """The best translation of each line; an empty line stays empty."""
    return [tokeniser.target.decode(one.hypotheses[0].tokens) if one.hypotheses else "" for one in translated]


def score_translations(hypotheses: Sequence[str], references: Sequence[str], recipe: Recipe) -> dict[str, Score]:
    """BLEU, chrF and exact match; BLEU over the tokens as they stand where the recipe says that the text is tokenised."""
    judge = tokenised_bleu if recipe.task.tokenised else bleu
    return {
        "bleu": judge(hypotheses, [references]),
        "chrf": chrf(hypotheses, [references]),
        "exact_match": exact_match(hypotheses, [references]),
    }
