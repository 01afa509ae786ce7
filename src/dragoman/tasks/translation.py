"""Translation: text to ids, ids to text, and the scores that translations are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.config import DecodingConfig, Recipe
from dragoman.data.subword import END_ID, Tokeniser
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.evaluation.metrics import Score, bleu, chrf, exact_match, tokenised_bleu
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import Advance, generate, start_id


@dataclass(frozen=True)
class Translated:
    """What became of one line: its hypotheses, best first; none where the line holds no text."""

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]


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
    """Translate each line, in order; a line without text has no hypotheses."""
    sources = [tokeniser.encode_source(line) for line in lines]
    full = [index for index, source in enumerate(sources) if holds_text(source)]
    advance(len(lines) - len(full))
    found = generate(models, [sources[i] for i in full], decoding, start_id=start_id(recipe.model), advance=advance)
    hypotheses = dict(zip(full, found, strict=True))
    return [Translated(tuple(source), tuple(hypotheses.get(index, ()))) for index, source in enumerate(sources)]


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
