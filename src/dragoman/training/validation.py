"""Validation: loss, perplexity, and BLEU of translations or F1 of trees.

A second loss with shuffled sources shows whether the model uses its source: a pure language model of the target has equal
losses with the source of another sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dragoman.config import (
    CorpusConfig,
    DataConfig,
    DecodingConfig,
    LanguagePair,
    Recipe,
    TaskConfig,
    TokenizerConfig,
    update_section,
)
from dragoman.data.collate import Batch, collate, iter_batches_by_length
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.padding import split_by_tokens
from dragoman.data.prepare import VALID, PreparedData, check_task_formats
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.subword_nmt import join_pieces
from dragoman.data.tokenization.word_boundaries import PairTokens
from dragoman.errors import DataError, RecipeError
from dragoman.evaluation.metrics import Score, mean_score
from dragoman.formats.pair import DirectedPair, Pair
from dragoman.formats.readers import read_pairs
from dragoman.model.transformer import Transformer
from dragoman.parsing.sentence_parser import SentenceParser, read_gold_tree, score_parses
from dragoman.parsing.trees.ptb import format_tree
from dragoman.parsing.trees.tree import get_leaves
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import LineSearch, decode_best, score_translations
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.compute_plan import ComputePlan
from dragoman.training.losses.function import LossFunction, build_validation_loss, count_learned
from dragoman.training.losses.label_smoothing import count_correct_tokens
from dragoman.training.monitoring.events import Sample

# Sample translations of a validation in the metrics log.
NUM_LOGGED_SAMPLES = 5
# Approximate number of pairs for the loss with shuffled sources.
NUM_SHUFFLED_PAIRS = 500

OnProgress = Callable[[int], None]


def ignore_progress(num_done: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Validator:
    """Validation of a model on the recipe's validation set.

    pairs: text of the sentences that are translated or parsed
    shuffled_pairs: indices (own, other) of pairs for the loss with shuffled sources
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    corpus: Corpus
    plan: ComputePlan
    pairs: Sequence[Pair]
    shuffled_pairs: Sequence[tuple[int, int]]

    def validate(self, model: Transformer, on_progress: OnProgress = ignore_progress) -> ValidationResult:
        """Return the loss over the whole set, and BLEU or F1 of a subset if the recipe asks for it."""
        config = self.recipe.training
        start_token_id = get_decoder_start_id(self.recipe.model)
        model.eval()
        try:
            loss_function = self._build_loss()
            loss, nll = compute_mean_loss(
                model, self.corpus, self.plan, loss_function, batch_tokens=config.batch_tokens, start_id=start_token_id
            )
            accuracy = compute_token_accuracy(
                model, self.corpus, self.plan, batch_tokens=config.batch_tokens, start_id=start_token_id
            )
            own_nll, shuffled_nll = self._compare_source_nll(model) if math.isfinite(nll) else (None, None)
            if not config.num_validation_translations or not math.isfinite(nll):
                return ValidationResult(loss, nll, None, (), accuracy, nll_own_source=own_nll, nll_shuffled_source=shuffled_nll)
            greedy_overrides = {"method": "greedy", "nbest": 1, "mbr": "none", "mbr_candidates": None, "coverage_penalty": 0.0}
            greedy = update_section(self.recipe.decoding, greedy_overrides, where="decoding")
            with self.plan.autocast():
                evaluation = Evaluator(model, self.tokenizer, self.recipe).evaluate(self.pairs, greedy, on_progress)
        finally:
            model.train()
        scores = {name: evaluation.scores[name].value for name in ("f1", "f1_gold_tags") if name in evaluation.scores}
        bleu = evaluation.scores["bleu"].value if "bleu" in evaluation.scores else None
        logged_samples = evaluation.samples[:NUM_LOGGED_SAMPLES]
        pair_scores = {
            "-".join(languages): {metric: round(pair_scores[metric].value, 4) for metric in ("bleu", "chrf")}
            for languages, pair_scores in evaluation.pair_scores.items()
        }
        return ValidationResult(
            loss,
            nll,
            bleu,
            logged_samples,
            accuracy,
            **scores,
            nll_own_source=own_nll,
            nll_shuffled_source=shuffled_nll,
            pair_scores=pair_scores or None,
            note=evaluation.scores["bleu"].note if "bleu" in evaluation.scores else None,
        )

    def _build_loss(self) -> LossFunction:
        return build_validation_loss(self.recipe.task, self.recipe.model, self.recipe.training)

    def _compare_source_nll(self, model: Transformer) -> tuple[float | None, float | None]:
        """Return the negative log-likelihood per token of a subset, with its own sources and with shuffled ones.

        Both are None if the set has only one pair, and for a decoder that reads no target tokens and cannot ignore its source.
        """
        config, loss_function = self.recipe.training, self._build_loss()
        rows = [pair for pair in self.shuffled_pairs if pair[0] != pair[1]]
        if not rows or not model.is_autoregressive:
            return None, None

        def compute_nll(column: int) -> float:
            lengths = [max(len(self.corpus.source(row[column])), len(self.corpus.target(row[0])) + 1) for row in rows]
            batches = (
                collate(
                    [self.corpus.source(row[column]) for row in rows[part]],
                    [self.corpus.target(row[0]) for row in rows[part]],
                    start_id=get_decoder_start_id(self.recipe.model),
                )
                for part in split_by_tokens(lengths, config.batch_tokens)
            )
            return _average_loss(model, batches, self.plan, loss_function)[1]

        return compute_nll(0), compute_nll(1)


def build_validator(
    recipe: Recipe, prepared: PreparedData, plan: ComputePlan, *, max_positions: int | None
) -> Validator | None:
    """Read the validation set and return its validator; None if the recipe has no validation set.

    max_positions: number of positions that the model has embeddings for, if it learns them

    Raises RecipeError if a sentence has more tokens. Training pairs were limited to data.max_length, validation pairs were not.
    """
    if not recipe.data.evaluation_corpora(VALID):
        return None
    corpus = prepared.corpus(VALID)
    pairs = read_evaluation_pairs(recipe, VALID, max_pairs=recipe.training.num_validation_translations)
    longest = max(int(lengths.max()) for lengths in corpus.lengths())
    if max_positions is not None and longest > max_positions:
        raise RecipeError(f"data.valid: {longest} tokens in a sentence, but model.max_positions = {max_positions}; raise it")
    return Validator(
        recipe,
        prepared.tokenizer,
        corpus,
        plan,
        [pair for name in pairs for pair in pairs[name]],
        pair_shuffled_sources(corpus, prepared.tokenizer),
    )


@dataclass(frozen=True)
class ValidationResult:
    """Scores of a validation; losses are in nats per target token.

    loss: smoothed loss, with the loss of the tags in a parser with a tagging head
    token_accuracy: share of the target tokens that are the likeliest after the reference's, in percent; None for CTC
    nll_own_source, nll_shuffled_source: `nll` of a subset, with its own sources and with those of other sentences
    pair_scores: BLEU and chrF of each pair of languages, such as en-de, for a model of many languages
    note: reason why BLEU says nothing about the outputs
    """

    loss: float
    nll: float
    bleu: float | None
    samples: tuple[Sample, ...]
    token_accuracy: float | None = None
    f1: float | None = None
    f1_gold_tags: float | None = None
    nll_own_source: float | None = None
    nll_shuffled_source: float | None = None
    pair_scores: dict[str, dict[str, float]] | None = None
    note: str | None = None

    def metric(self, metric_name: str) -> float:
        """Return the metric for the selection of the best checkpoint; higher is better."""
        score = {"bleu": self.bleu, "f1": self.f1}.get(metric_name)
        return -self.nll if score is None else score


def pair_shuffled_sources(corpus: Corpus, tokenizer: PairTokenizer) -> list[tuple[int, int]]:
    """Return pairs (own, other) of indices, spread evenly over all lengths. Both sources have about as many words."""
    pair_tokens = PairTokens(tokenizer)
    word_counts = np.array(
        [pair_tokens.source.count_words(pair_tokens.strip_source_eos(corpus.source(row))) for row in range(len(corpus))]
    )
    # With language tokens, the other source has the same one, because another token alone would change the loss.
    tokens = np.array([int(corpus.source(row)[0]) if tokenizer.languages is not None else 0 for row in range(len(corpus))])
    order = np.lexsort((corpus.lengths()[0], word_counts, tokens)).tolist()
    stride = max(1, len(order) // NUM_SHUFFLED_PAIRS)
    return [(order[position], order[(position + 1) % len(order)]) for position in range(0, len(order), stride)]


def compute_mean_loss(
    model: Transformer,
    corpus: Corpus,
    plan: ComputePlan,
    loss_function: LossFunction,
    *,
    batch_tokens: int,
    start_id: int,
) -> tuple[float, float]:
    """Return the loss and the negative log-likelihood per target token, end tokens included, in nats."""
    return _average_loss(
        model, iter_batches_by_length(corpus, batch_tokens=batch_tokens, start_id=start_id), plan, loss_function
    )


@torch.no_grad()
def compute_token_accuracy(
    model: Transformer, corpus: Corpus, plan: ComputePlan, *, batch_tokens: int, start_id: int
) -> float | None:
    """Return the percentage of target tokens, end tokens included, that are the likeliest ones under teacher forcing.

    It is None for a decoder that reads no target tokens.
    """
    if not model.is_autoregressive:
        return None
    num_correct = num_tokens = 0
    for batch in iter_batches_by_length(corpus, batch_tokens=batch_tokens, start_id=start_id):
        with plan.autocast():
            num_correct += count_correct_tokens(model, batch.to(plan.device))
        num_tokens += batch.num_target_tokens
    return 100.0 * num_correct / num_tokens


@torch.no_grad()
def _average_loss(
    model: Transformer, batches: Iterable[Batch], plan: ComputePlan, loss_function: LossFunction
) -> tuple[float, float]:
    loss_sum = nll_sum = 0.0
    num_tokens = 0
    for cpu_batch in batches:
        batch = cpu_batch.to(plan.device)
        with plan.autocast():
            loss, nll = loss_function(model, batch)
        loss_sum += loss.item()
        nll_sum += nll.item()
        num_tokens += count_learned(model, cpu_batch)[0]
    if not num_tokens:
        raise DataError(
            "data.valid: no target fits into the positions of the decoder; raise model.ctc_upsampling, or give other pairs",
            code="empty-data",
        )
    return loss_sum / num_tokens, nll_sum / num_tokens


@dataclass(frozen=True)
class EvaluationResult:
    """Scores over a corpus, with the scored translations or trees.

    scores: scores by metric; the means over the pairs of languages if there are several
    incomplete_outputs: number of outputs by status other than "ok": "truncated", "repetition", "too_long", "empty"
    pair_scores: scores of each pair of languages by metric, for a model of many languages
    """

    scores: dict[str, Score]
    samples: tuple[Sample, ...]
    incomplete_outputs: dict[str, int]
    pair_scores: dict[LanguagePair, dict[str, Score]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """The notes of all scores, each once."""
        return list(dict.fromkeys(score.note for score in self.scores.values() if score.note is not None))


def read_eval_pairs(corpus: CorpusConfig, data: DataConfig, task: TaskConfig, *, max_pairs: int | None = None) -> list[Pair]:
    """Return the pairs of a validation or test corpus as text; at most `max_pairs`, spread over the corpus.

    Raises DataError if a tree cannot be scored.
    """
    check_task_formats(task, data)
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    pairs = list(read_pairs(corpus, Path(data.root), **languages))
    # A corpus is often a sequence of documents, some harder than others.
    if max_pairs is not None and max_pairs < len(pairs):
        pairs = [pairs[index * len(pairs) // max_pairs] for index in range(max_pairs)]
    if not task.has_text_target:
        for pair in pairs:
            read_gold_tree(task, pair)
    return pairs


def read_evaluation_pairs(
    recipe: Recipe, split: Literal["valid", "test"], *, max_pairs: int | None = None
) -> dict[str, list[Pair]]:
    """Return the pairs of each direction of the validation or test corpora, as `read_eval_pairs` does.

    max_pairs: limit over all directions, of which each has an equal share

    The pairs of a model of many languages hold their languages.
    """
    directions = recipe.evaluation_directions(split)
    share = max_pairs if not max_pairs or len(directions) < 2 else max(1, max_pairs // len(directions))
    pairs_by_name = {}
    for name, direction in directions.items():
        task = recipe.with_languages(direction.text_languages).task
        pairs = read_eval_pairs(direction.corpus, recipe.data, task, max_pairs=share)
        if recipe.tokenizer.language_token is not None:
            sides = [(pair.target, pair.source) if direction.is_reversed else (pair.source, pair.target) for pair in pairs]
            pairs = [
                DirectedPair(source, target, pair.origin, *direction.languages)
                for pair, (source, target) in zip(pairs, sides, strict=True)
            ]
        pairs_by_name[name] = pairs
    return pairs_by_name


def with_pair_languages(task: TaskConfig, pairs: Sequence[Pair]) -> TaskConfig:
    """Return the task with the languages of these pairs, which are of one pair of languages, if they hold any."""
    if not pairs or not isinstance(pairs[0], DirectedPair):
        return task
    languages = {"source_language": pairs[0].source_language, "target_language": pairs[0].target_language}
    return task.model_copy(update=languages)


def group_by_languages(pairs: Sequence[Pair]) -> dict[LanguagePair | None, list[int]]:
    """Return the indices of the pairs of each pair of languages; those without languages have the key None."""
    groups: dict[LanguagePair | None, list[int]] = {}
    for index, pair in enumerate(pairs):
        languages = (pair.source_language, pair.target_language) if isinstance(pair, DirectedPair) else None
        groups.setdefault(languages, []).append(index)
    return groups


def get_references(pairs: Sequence[Pair], tokenizer: TokenizerConfig) -> list[str]:
    """Return the targets of pairs as text to score against. Pieces of subword-nmt, as in published corpora, are joined."""
    has_pieces = tokenizer.model_type == "subword-nmt"
    return [join_pieces(pair.target) if has_pieces else pair.target for pair in pairs]


@dataclass(frozen=True)
class Evaluator:
    """Scores of a model on pairs."""

    model: Transformer
    tokenizer: PairTokenizer
    recipe: Recipe

    def evaluate(
        self, pairs: Sequence[Pair], decoding: DecodingConfig, on_progress: OnProgress = ignore_progress
    ) -> EvaluationResult:
        """Translate or parse the sources, and score the outputs; each pair of languages by itself.

        on_progress: takes the number of sentences that were finished since its last call
        """
        if not self.recipe.task.has_text_target:
            return self._evaluate_parses(pairs, decoding, on_progress)
        groups = group_by_languages(pairs)
        evaluations = {}
        for languages, indices in groups.items():
            evaluator = self if languages is None else self._select_languages(languages)
            group = [pairs[index] for index in indices]
            evaluations[languages] = evaluator._evaluate_translations(group, decoding, on_progress)
        if len(evaluations) == 1:
            [(languages, evaluation)] = evaluations.items()
            return evaluation if languages is None else replace(evaluation, pair_scores={languages: evaluation.scores})
        samples = {
            index: sample
            for languages, indices in groups.items()
            for index, sample in zip(indices, evaluations[languages].samples, strict=True)
        }
        incomplete_outputs = sum(
            (Counter(evaluation.incomplete_outputs) for evaluation in evaluations.values()), Counter[str]()
        )
        pair_scores = {languages: evaluation.scores for languages, evaluation in evaluations.items() if languages is not None}
        return EvaluationResult(
            _average_scores(list(pair_scores.values())),
            tuple(samples[index] for index in range(len(pairs))),
            dict(incomplete_outputs),
            pair_scores,
        )

    def _select_languages(self, languages: LanguagePair) -> Evaluator:
        tokenizer = self.tokenizer.select_languages(*languages, zero_shot=True)
        return Evaluator(self.model, tokenizer, self.recipe.with_languages(languages))

    def _evaluate_translations(
        self, pairs: Sequence[Pair], decoding: DecodingConfig, on_progress: OnProgress
    ) -> EvaluationResult:
        task, start_id = self.recipe.task, get_decoder_start_id(self.recipe.model)
        search = LineSearch(
            as_inference_model([self.model]), self.tokenizer, task, decoding, start_id, TorchForcedDecoder(self.model)
        )
        translations = search.translate([pair.source for pair in pairs], on_progress=on_progress)
        texts = decode_best(translations, self.tokenizer)
        scores = score_translations(texts, get_references(pairs, self.recipe.tokenizer), task)
        samples = tuple(Sample(pair.source, pair.target, text) for pair, text in zip(pairs, texts, strict=True))
        incomplete_outputs: Counter[str] = Counter()
        for sample, translation in zip(samples, translations, strict=True):
            status = "empty" if translation.status == "ok" and not sample.translation.strip() else translation.status
            incomplete_outputs[status] += status != "ok" and bool(sample.source.strip())
        return EvaluationResult(scores, samples, dict(+incomplete_outputs))

    def _evaluate_parses(self, pairs: Sequence[Pair], decoding: DecodingConfig, on_progress: OnProgress) -> EvaluationResult:
        """Parse the words of the gold trees with well-formed trees, and with the gold tags if the recipe gives them."""
        task = self.recipe.task
        gold_trees = [read_gold_tree(task, pair) for pair in pairs]
        words = [[leaf.word for leaf in get_leaves(tree)] for tree in gold_trees]
        tags = [[leaf.tag or "" for leaf in get_leaves(tree)] for tree in gold_trees] if task.pos_tags == "given" else None
        inference_model, taggers = as_inference_model([self.model]), [TorchForcedDecoder(self.model)]
        parser = SentenceParser(inference_model, taggers, self.tokenizer, self.recipe, decoding)
        parses = parser.parse(words, tags=tags, on_progress=on_progress)
        scores = score_parses([parse.tree for parse in parses], gold_trees)
        samples = tuple(
            Sample(" ".join(parse.words), format_tree(reference), format_tree(parse.tree) if parse.tree is not None else "")
            for reference, parse in zip(gold_trees, parses, strict=True)
        )
        statuses = (parse.status for parse in parses if parse.status in ("truncated", "too_long"))
        return EvaluationResult(scores, samples, dict(Counter[str](statuses)))


def _average_scores(scores_by_pair: Sequence[dict[str, Score]]) -> dict[str, Score]:
    """Return the mean of each metric that all pairs of languages have."""
    metrics = [metric for metric in scores_by_pair[0] if all(metric in pair_scores for pair_scores in scores_by_pair)]
    return {metric: mean_score([pair_scores[metric] for pair_scores in scores_by_pair]) for metric in metrics}
