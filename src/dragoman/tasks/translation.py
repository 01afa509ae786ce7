"""Translation: text to ids, ids to text, and the scores that translations are judged by."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from dragoman.config import DecodingConfig, Recipe
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.decoding.constraints import NO_SENTENCE_CONSTRAINTS, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.repetition import contains_repetition
from dragoman.errors import MissingDependencyError, RecipeError
from dragoman.evaluation.metrics import Score, bleu, chrf, exact_match, paper_bleu, tokenized_bleu, uses_split_compounds
from dragoman.tasks.generation import MapFn, OnProgress, generate
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id
from dragoman.tasks.mbr import build_candidate_search, rerank_by_mbr

TranslationStatus = Literal["ok", "truncated", "looped", "copied", "empty", "refused"]
"""What became of a line:

    ok          a translation that came to its end
    truncated   cut where the longest allowed output ends
    looped      went round in circles, and was stopped
    copied      is the source once more
    empty       holds no text: nothing was given, or nothing came of it
    refused     not translated, since the source is longer than the model reads
"""
# Letters between other things; of Chinese and Japanese, which write no spaces, each sign.
WORD_PATTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")
# Fewer words may well be the same in both languages: a name, a title, an address.
MIN_COPIED_WORDS = 4
MIN_COPIED_FRACTION = 0.9


@dataclass(frozen=True)
class TranslatedLine:
    """What became of one line: its hypotheses, best first; none where it holds no text or was refused."""

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    status: TranslationStatus


def has_text(line: str, ids: Sequence[int]) -> bool:
    """Whether there is anything to translate: more than white space, and more than the end token."""
    return bool(line.strip()) and any(token_id != END_ID for token_id in ids)


def get_source_limit(max_positions: int | None, decoding: DecodingConfig) -> int:
    """How many tokens of one line are read: `max_source_tokens`, or fewer where the model's positions end before."""
    return min(decoding.max_source_tokens, max_positions or decoding.max_source_tokens)


def translate_lines(
    inference_model: InferenceModel,
    tokenizer: PairTokenizer,
    lines: Sequence[str],
    recipe: Recipe,
    decoding: DecodingConfig,
    *,
    sample_ids: Sequence[int] | None = None,
    constraints: Sequence[SentenceConstraints] = (),
    return_alternatives: bool = False,
    on_progress: OnProgress = lambda _: None,
    map_fn: MapFn = map,
) -> list[TranslatedLine]:
    """Translate each line, in order; a line without text, or one too long to read, has no hypotheses.

    places: the number of each line in its text, by which sampling draws; 0, 1, … when not given
    wishes: what is asked of the translation of each, or nothing at all
    branching: see `generate`
    """
    source_limit = get_source_limit(inference_model.max_positions, decoding)
    sources = [tokenizer.encode_source(line) for line in lines]
    text_indices = [index for index, (line, source) in enumerate(zip(lines, sources, strict=True)) if has_text(line, source)]
    readable = [index for index in text_indices if len(sources[index]) <= source_limit]
    line_constraints = [constraints[index] for index in readable] if constraints else [NO_SENTENCE_CONSTRAINTS] * len(readable)
    is_repetitive = [
        any(
            contains_repetition(tokens, decoding.repetition_window)
            for tokens in (sources[index], sentence_constraints.prefix, *sentence_constraints.include)
        )
        for index, sentence_constraints in zip(readable, line_constraints, strict=True)
    ]
    if any(is_repetitive):  # what the source or its wording repeats, the translation may repeat
        line_constraints = [
            replace(wish, may_loop=may_repeat) for wish, may_repeat in zip(line_constraints, is_repetitive, strict=True)
        ]
    on_progress(len(lines) - len(readable))
    results = generate(
        inference_model,
        [sources[index] for index in readable],
        build_candidate_search(decoding),
        start_id=get_decoder_start_id(recipe.model),
        sample_ids=readable if sample_ids is None else [sample_ids[index] for index in readable],
        constraints=line_constraints if constraints or any(is_repetitive) else (),
        decoding_constraints=build_decoding_constraints(decoding, tokenizer.target),
        return_alternatives=return_alternatives,
        on_progress=on_progress,
        map_fn=map_fn,
    )
    if decoding.mbr != "none":
        results = [
            rerank_by_mbr(
                line_hypotheses,
                [tokenizer.target.decode(hypothesis.tokens) for hypothesis in line_hypotheses],
                decoding,
                tokenized=recipe.task.tokenized,
            )
            for line_hypotheses in results
        ]
    hypotheses = dict(zip(readable, results, strict=True))
    statuses: dict[int, TranslationStatus] = dict.fromkeys(text_indices, "refused")
    statuses |= {
        index: get_status(line_hypotheses[0]) if line_hypotheses else "truncated"
        for index, line_hypotheses in hypotheses.items()
    }
    return [
        TranslatedLine(tuple(source), tuple(hypotheses.get(index, ())), statuses.get(index, "empty"))
        for index, source in enumerate(sources)
    ]


def build_decoding_constraints(decoding: DecodingConfig, target: Vocabulary) -> DecodingConstraints:
    """What a config asks of all outputs. Raises RecipeError for a piece that the target's subword model does not have."""
    suppressed_ids = []
    for piece in decoding.suppress_tokens:
        if (token := target.piece_to_id(piece)) is None:
            raise RecipeError(f"decoding.suppress_tokens: {piece!r} is not a piece of the target's subword model")
        suppressed_ids.append(token)
    return DecodingConstraints(
        decoding.min_length, decoding.no_repeat_ngram_size, tuple(suppressed_ids), repetition_window=decoding.repetition_window
    )


def get_status(hypothesis: Hypothesis, text: str | None = None) -> TranslationStatus:
    """What its tokens tell, and its text where it is known, since a piece may be a space; of copies `is_copy` tells."""
    if hypothesis.has_repetition:
        return "looped"
    if not hypothesis.finished:
        return "truncated"
    return "ok" if (hypothesis.tokens if text is None else text.strip()) else "empty"


def is_copy(source: str, translation: str) -> bool:
    """Whether the translation is the source once more: four words or more, nine tenths of both the same, in one order."""
    source_words, output_words = (WORD_PATTERN.findall(text.casefold()) for text in (source, translation))
    if len(output_words) < MIN_COPIED_WORDS:
        return False
    min_shared = MIN_COPIED_FRACTION * max(len(output_words), len(source_words))
    if (Counter(source_words) & Counter(output_words)).total() < min_shared:  # in whatever order: an upper bound, and cheap
        return False
    matching_blocks = SequenceMatcher(None, source_words, output_words, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matching_blocks) >= min_shared


def decode_best(translated_lines: Sequence[TranslatedLine], tokenizer: PairTokenizer) -> list[str]:
    """The best translation of each line; an empty line stays empty."""
    return [tokenizer.target.decode(line.hypotheses[0].tokens) if line.hypotheses else "" for line in translated_lines]


def score_translations(hypotheses: Sequence[str], references: Sequence[str], recipe: Recipe) -> dict[str, Score]:
    """BLEU, chrF and exact match; BLEU over the tokens as they stand where the recipe says that the text is tokenised.

    Of German also BLEU as the paper has it, with compounds split, unless plain text has no Moses tokeniser here to cut it.
    """
    task = recipe.task
    bleu_metric = tokenized_bleu if task.tokenized else bleu
    scores = {
        "bleu": bleu_metric(hypotheses, [references]),
        "chrf": chrf(hypotheses, [references]),
        "exact_match": exact_match(hypotheses, [references]),
    }
    if uses_split_compounds(task.target_language):
        with suppress(MissingDependencyError):
            scores["paper_bleu"] = paper_bleu(hypotheses, [references], task.target_language, tokenized=task.tokenized)
    return scores
