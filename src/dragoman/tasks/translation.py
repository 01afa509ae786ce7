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
from dragoman.tasks.generation import Advance, generate, most_positions, start_id

Status = Literal["ok", "unfinished", "empty", "too long"]


@dataclass(frozen=True)
class Translated:
    """What became of one line: its hypotheses, best first; none where it holds no text or is too long.

    status: "ok"; "unfinished" where the longest allowed length cut the best hypothesis; "empty"; "too long"
    """

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    status: Status


def holds_text(line: str, ids: Sequence[int]) -> bool:
    """Whether there is anything to translate: more than white space, and more than the end token."""
    return bool(line.strip()) and any(index != END_ID for index in ids)


def longest_source(models: Sequence[Transformer], decoding: DecodingConfig) -> int:
    """How many tokens of one line the models read: `max_source`, or fewer where their positions end before."""
    return min(decoding.max_source, most_positions(models) or decoding.max_source)


def translate_lines(
    models: Sequence[Transformer],
    tokeniser: Tokeniser,
    lines: Sequence[str],
    recipe: Recipe,
    decoding: DecodingConfig,
    *,
    first: int = 0,
    advance: Advance = lambda _: None,
) -> list[Translated]:
    """Translate each line, in order; a line without text, or one too long to read, has no hypotheses.

    first: the number of the first line in its text, counted from 0, where the lines are a part of it
    """
    longest = longest_source(models, decoding)
    sources = [tokeniser.encode_source(line) for line in lines]
    texts = [index for index, (line, source) in enumerate(zip(lines, sources, strict=True)) if holds_text(line, source)]
    full = [index for index in texts if len(sources[index]) <= longest]
    advance(len(lines) - len(full))
    found = generate(
        models,
        [sources[index] for index in full],
        decoding,
        start_id=start_id(recipe.model),
        places=[first + index for index in full],
        advance=advance,
    )
    hypotheses = dict(zip(full, found, strict=True))
    status: dict[int, Status] = dict.fromkeys(texts, "too long")
    status |= {index: "ok" if some and some[0].finished else "unfinished" for index, some in hypotheses.items()}
    return [
        Translated(tuple(source), tuple(hypotheses.get(index, ())), status.get(index, "empty"))
        for index, source in enumerate(sources)
    ]


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
