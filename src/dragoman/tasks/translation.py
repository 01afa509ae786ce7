"""Translation: text to ids, ids to hypotheses, and scores of translations.

`LineSearch.translate` encodes lines and searches them. Training validates with it. Inference calls the two steps one by one,
because it searches some lines twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

from dragoman.config import DecodingConfig, TaskConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.decoding.constraints import NO_SENTENCE_CONSTRAINTS, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.repetition import contains_repetition
from dragoman.errors import MissingDependencyError, RecipeError
from dragoman.tasks.forced_decoding import ForcedDecoder
from dragoman.tasks.generation import BatchSearch, MapFn, OnProgress, generate
from dragoman.tasks.inference_model import InferenceModel
from dragoman.tasks.mbr import UtilityFn, build_candidate_search, rerank_by_mbr
from dragoman.tasks.translation_status import TranslationStatus

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Score

MIN_SHORT_SOURCE_TOKENS = 20
"""Sources with fewer tokens never have the status `short`, because the length ratios of short lines vary widely."""
# Runs of letters; in Chinese and Japanese, which have no spaces, single characters.
WORD_PATTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")
# Fewer words may well be equal in both languages, for example a name, a title or an address.
MIN_COPIED_WORDS = 4
MIN_COPIED_FRACTION = 0.9


@dataclass(frozen=True)
class EncodedLine:
    """Source ids of one line; `skip_status` is the reason why the line is not searched, or None."""

    source: tuple[int, ...]
    skip_status: Literal["empty", "too_long"] | None = None


@dataclass(frozen=True)
class TranslatedLine:
    """Hypotheses of one line, best first; none if the line has no text or is too long."""

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    status: TranslationStatus


def has_text(line: str, ids: Sequence[int]) -> bool:
    """Return whether a line has more than white space, and its ids more than the end token."""
    return bool(line.strip()) and any(token_id != END_ID for token_id in ids)


def get_source_limit(max_positions: int | None, decoding: DecodingConfig) -> int:
    """Return the longest source in tokens: `max_source_tokens`, or the model's positions if they are fewer."""
    return min(decoding.max_source_tokens, max_positions or decoding.max_source_tokens)


def encode_lines(tokenizer: PairTokenizer, lines: Sequence[str], *, source_limit: int) -> list[EncodedLine]:
    """Return the source ids of each line, and mark lines without text and lines longer than the limit in tokens."""
    encoded_lines = []
    for line, ids in zip(lines, tokenizer.encode_sources(lines), strict=True):
        source = tuple(ids)
        skip_status: Literal["empty", "too_long"] | None = None
        if not has_text(line, source):
            skip_status = "empty"
        elif len(source) > source_limit:
            skip_status = "too_long"
        encoded_lines.append(EncodedLine(source, skip_status))
    return encoded_lines


@dataclass(frozen=True)
class LineSearch:
    """Search for the hypotheses of lines, with one model and the same options.

    start_id: first decoder input
    forced_decoder: model whose attention the coverage penalty reads; needed if `decoding.coverage_penalty` is set
    compute_utility: utility of minimum Bayes risk for a metric that is neither chrF nor BLEU
    """

    inference_model: InferenceModel
    tokenizer: PairTokenizer
    task: TaskConfig
    decoding: DecodingConfig
    start_id: int
    forced_decoder: ForcedDecoder | None = None
    compute_utility: UtilityFn | None = None

    def translate(self, lines: Sequence[str], *, on_progress: OnProgress = lambda _: None) -> list[TranslatedLine]:
        source_limit = get_source_limit(self.inference_model.max_positions, self.decoding)
        return self.run(encode_lines(self.tokenizer, lines, source_limit=source_limit), on_progress=on_progress)

    def run(
        self,
        lines: Sequence[EncodedLine],
        *,
        sample_ids: Sequence[int] | None = None,
        constraints: Sequence[SentenceConstraints] = (),
        return_alternatives: bool = False,
        on_progress: OnProgress = lambda _: None,
        map_fn: MapFn = map,
    ) -> list[TranslatedLine]:
        """Search the hypotheses of each line, in order; a line with a `skip_status` has none.

        sample_ids: number of each line in its text, which selects the random stream of sampling; default 0, 1, …
        constraints: constraints on the translation of each line, or an empty sequence
        return_alternatives, on_progress, map_fn: see `BatchSearch` and `generate`
        """
        if self.decoding.mbr == "bleu":
            from dragoman.evaluation.bleu_tokenizer import check_bleu_tokenizer  # most searches need no scores

            check_bleu_tokenizer(self.task)
        searched = [index for index, line in enumerate(lines) if line.skip_status is None]
        sources = [lines[index].source for index in searched]
        line_constraints = _allow_repetitions(
            sources,
            [constraints[index] for index in searched] if constraints else [],
            self.decoding.repetition_window,
        )
        on_progress(len(lines) - len(searched))
        results = generate(
            BatchSearch(
                self.inference_model,
                build_candidate_search(self.decoding),
                start_id=self.start_id,
                prompt=tuple(self.tokenizer.decoder_prompt),
                decoding_constraints=build_decoding_constraints(self.decoding, self.tokenizer.target),
                return_alternatives=return_alternatives,
            ),
            sources,
            sample_ids=searched if sample_ids is None else [sample_ids[index] for index in searched],
            constraints=line_constraints,
            decode=self.tokenizer.target.decode if self.decoding.mbr == "none" else None,
            on_progress=on_progress,
            map_fn=map_fn,
        )
        results = self._rerank(searched, sources, results)
        hypotheses_by_line = dict(zip(searched, results, strict=True))
        return [
            TranslatedLine(line.source, tuple(hypotheses), _get_line_status(line, hypotheses, self.decoding))
            for index, line in enumerate(lines)
            for hypotheses in [hypotheses_by_line.get(index, [])]
        ]

    def _rerank(
        self, indices: Sequence[int], sources: Sequence[Sequence[int]], results: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line by the coverage penalty and by minimum Bayes risk, if the decoding has them.

        indices: place of each line among all lines, for `compute_utility`
        """
        if self.decoding.coverage_penalty:
            assert self.forced_decoder is not None, "the coverage penalty reads the attention of a model"
            from dragoman.tasks.coverage_penalty import rerank_by_coverage

            results = rerank_by_coverage(
                self.forced_decoder,
                sources,
                results,
                self.decoding,
                start_id=self.start_id,
                prompt=self.tokenizer.decoder_prompt,
            )
        if self.decoding.mbr != "none":
            from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer

            results = [
                rerank_by_mbr(
                    line_hypotheses,
                    [self.tokenizer.target.decode(hypothesis.tokens) for hypothesis in line_hypotheses],
                    self.decoding,
                    bleu_tokenizer=get_task_bleu_tokenizer(self.task),
                    compute_utility=None if self.compute_utility is None else partial(self.compute_utility, index),
                )
                for index, line_hypotheses in zip(indices, results, strict=True)
            ]
        return results


def _allow_repetitions(
    sources: Sequence[Sequence[int]], constraints: Sequence[SentenceConstraints], window: int
) -> list[SentenceConstraints]:
    """Return the constraints, with repetitions allowed for each source or constraint that repeats itself.

    The result is empty if no line needs a constraint.
    """
    line_constraints = list(constraints) or [NO_SENTENCE_CONSTRAINTS] * len(sources)
    is_repetitive = [
        any(
            contains_repetition(tokens, window)
            for tokens in (source, constraint.prefix, *(phrase.tokens for phrase in chain.from_iterable(constraint.include)))
        )
        for source, constraint in zip(sources, line_constraints, strict=True)
    ]
    if not any(is_repetitive):
        return list(constraints)
    return [
        replace(constraint, allow_repetition=may_repeat)
        for constraint, may_repeat in zip(line_constraints, is_repetitive, strict=True)
    ]


def _get_line_status(line: EncodedLine, hypotheses: Sequence[Hypothesis], decoding: DecodingConfig) -> TranslationStatus:
    if line.skip_status is not None:
        return line.skip_status
    if not hypotheses:
        return "truncated"
    return get_status(hypotheses[0], source=line.source, min_length_ratio=decoding.min_length_ratio)


def build_decoding_constraints(decoding: DecodingConfig, target: Vocabulary) -> DecodingConstraints:
    """Return the constraints of a config on all outputs, which hold no reserved tokens.

    Raises RecipeError for a piece that is not in the vocabulary.
    """
    suppressed_ids = list(target.reserved_ids)
    for piece in decoding.suppress_tokens:
        if (token := target.piece_to_id(piece)) is None:
            raise RecipeError(f"decoding.suppress_tokens: {piece!r} is not a piece of the target tokenizer; remove it")
        suppressed_ids.append(token)
    return DecodingConstraints(
        decoding.min_length, decoding.no_repeat_ngram_size, tuple(suppressed_ids), repetition_window=decoding.repetition_window
    )


def get_status(
    hypothesis: Hypothesis, text: str | None = None, *, source: Sequence[int] = (), min_length_ratio: float = 0.0
) -> TranslationStatus:
    """Return the status of a hypothesis; `is_copy` detects copies.

    text: text of the hypothesis, if known; it may be empty although there are tokens, because a piece may be a space
    source: source ids, which `short` compares with the output
    min_length_ratio: lowest allowed ratio of output tokens to source tokens; 0 allows all
    """
    if hypothesis.has_repetition:
        return "repetition"
    if not hypothesis.finished:
        return "truncated"
    if not (hypothesis.tokens if text is None else text.strip()):
        return "empty"
    return "short" if is_short(source, hypothesis.tokens, min_length_ratio) else "ok"


def is_short(source: Sequence[int], output: Sequence[int], min_length_ratio: float) -> bool:
    """Return whether the output has fewer tokens than this share of its source's tokens, end tokens not counted.

    Sources with fewer than `MIN_SHORT_SOURCE_TOKENS` tokens are exempt.
    """
    num_source_tokens = len(source) - source.count(END_ID)
    return num_source_tokens >= MIN_SHORT_SOURCE_TOKENS and len(output) < min_length_ratio * num_source_tokens


def is_copy(source: str, translation: str) -> bool:
    """Return whether the translation copies the source: four words or more, nine tenths of both equal and in one order."""
    source, output_words = source.casefold(), WORD_PATTERN.findall(translation.casefold())
    if len(output_words) < MIN_COPIED_WORDS:
        return False
    if sum(map(source.__contains__, output_words)) < MIN_COPIED_FRACTION * len(output_words):  # a cheap upper bound
        return False
    from difflib import SequenceMatcher  # most outputs share too few words

    source_words = WORD_PATTERN.findall(source)
    min_shared = MIN_COPIED_FRACTION * max(len(output_words), len(source_words))
    matching_blocks = SequenceMatcher(None, source_words, output_words, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matching_blocks) >= min_shared


def decode_best(translated_lines: Sequence[TranslatedLine], tokenizer: PairTokenizer) -> list[str]:
    """Return the text of the best hypothesis of each line; empty for a line without hypotheses."""
    return [tokenizer.target.decode(line.hypotheses[0].tokens) if line.hypotheses else "" for line in translated_lines]


def score_translations(hypotheses: Sequence[str], references: Sequence[str], task: TaskConfig) -> dict[str, Score]:
    """Return BLEU with the tokenizer of the target language, chrF and exact match.

    German also has BLEU as in the paper, with split compounds, unless plain text needs a Moses tokenizer that is missing.
    """
    from dragoman.evaluation.bleu_tokenizer import bleu_with_tokenizer, get_task_bleu_tokenizer  # translation has no scores
    from dragoman.evaluation.metrics import chrf, exact_match, paper_bleu, uses_split_compounds

    scores = {
        "bleu": bleu_with_tokenizer(hypotheses, [references], get_task_bleu_tokenizer(task)),
        "chrf": chrf(hypotheses, [references]),
        "exact_match": exact_match(hypotheses, [references]),
    }
    if uses_split_compounds(task.target_language):
        with suppress(MissingDependencyError):
            scores["paper_bleu"] = paper_bleu(hypotheses, [references], task.target_language, tokenized=task.tokenized)
    return scores
