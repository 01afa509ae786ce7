"""How good the model is on text it did not learn from: loss, perplexity, translations judged by BLEU, or trees by F1.

And whether it reads its source at all: a model that has only learnt what targets are like is as good with another's source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dragoman.config import CorpusConfig, DecodingConfig, Recipe, TrainingConfig, update_section
from dragoman.data.collate import Batch, collate, iter_batches_by_length, split_by_tokens
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.prepare import VALID, PreparedData, check_task_formats
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.errors import RecipeError
from dragoman.evaluation.metrics import Score
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import as_inference_model, get_decoder_start_id
from dragoman.tasks.parsing import parse_sentences, read_gold_tree, score_parses
from dragoman.tasks.translation import decode_best, score_translations, translate_lines
from dragoman.training.device import ComputePlan
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.trees.ptb import format_tree
from dragoman.trees.tree import get_leaves

# Sentences of a validation that a listener is shown.
NUM_LOGGED_SAMPLES = 5
# Of those, about so many have their sources shuffled.
NUM_SHUFFLED_PAIRS = 500


class Validator:
    """Judges a model on the recipe's validation set while it learns."""

    def __init__(self, recipe: Recipe, prepared: PreparedData, plan: ComputePlan, *, max_positions: int | None) -> None:
        """`most`: positions that the model has, if it learns them. Raises RecipeError where a sentence is longer: pairs to
        learn from were cut to data.max_length, but those of validation stay as they are.
        """
        assert recipe.data.valid is not None
        self.recipe = recipe
        self.plan = plan
        self.tokenizer = prepared.tokenizer
        self.corpus = prepared.corpus(VALID)
        self.pairs = read_eval_pairs(recipe.data.valid, recipe, max_pairs=recipe.training.num_validation_translations)
        self.shuffled_pairs = pair_shuffled_sources(self.corpus, self.tokenizer)
        longest = max(int(lengths.max()) for lengths in self.corpus.lengths())
        if max_positions is not None and longest > max_positions:
            raise RecipeError(
                f"data.valid: {longest} tokens in a sentence, but model.max_positions = {max_positions}; raise it"
            )

    def validate(self, model: Transformer) -> ValidationResult:
        """Loss over the whole set, and BLEU or F1 of some sentences if the recipe asks for that."""
        config = self.recipe.training
        pos_loss_weight = self.recipe.task.pos_loss_weight if self.recipe.task.has_tagging_head else 0.0
        start_token_id = get_decoder_start_id(self.recipe.model)
        model.eval()
        try:
            loss, nll = compute_mean_loss(
                model, self.corpus, self.plan, config, start_id=start_token_id, pos_loss_weight=pos_loss_weight
            )
            own_nll, shuffled_nll = self._compare_source_nll(model) if math.isfinite(nll) else (None, None)
            if not config.num_validation_translations or not math.isfinite(nll):
                return ValidationResult(loss, nll, None, (), nll_own_source=own_nll, nll_shuffled_source=shuffled_nll)
            greedy_overrides = {"method": "greedy", "nbest": 1, "mbr": "none", "mbr_candidates": None}
            greedy = update_section(self.recipe.decoding, greedy_overrides, where="decoding")
            with self.plan.autocast():
                evaluation = evaluate(model, self.tokenizer, self.recipe, self.pairs, greedy)
        finally:
            model.train()
        scores = {name: evaluation.scores[name].value for name in ("f1", "f1_gold_tags") if name in evaluation.scores}
        bleu = evaluation.scores["bleu"].value if "bleu" in evaluation.scores else None
        logged_samples = evaluation.samples[:NUM_LOGGED_SAMPLES]
        return ValidationResult(
            loss, nll, bleu, logged_samples, **scores, nll_own_source=own_nll, nll_shuffled_source=shuffled_nll
        )

    def _compare_source_nll(self, model: Transformer) -> tuple[float | None, float | None]:
        """Negative log-likelihood a token of some sentences with their own sources and with each other's; none of one alone."""
        config, rows = self.recipe.training, [pair for pair in self.shuffled_pairs if pair[0] != pair[1]]
        if not rows:
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
            return _average_loss(model, batches, self.plan, config, 0.0)[1]

        return compute_nll(0), compute_nll(1)


@dataclass(frozen=True)
class ValidationResult:
    """What a validation found: smoothed loss and negative log-likelihood a token, in nats; BLEU or F1, and some sentences.

    loss: with that of the tags, in a parser that has a tag head
    nll_own_source, nll_shuffled_source: the second of some of the sentences, and the same with the sources of others as long
    """

    loss: float
    nll: float
    bleu: float | None
    samples: tuple[Sample, ...]
    f1: float | None = None
    f1_gold_tags: float | None = None
    nll_own_source: float | None = None
    nll_shuffled_source: float | None = None

    def metric(self, metric_name: str) -> float:
        """Higher is better."""
        score = {"bleu": self.bleu, "f1": self.f1}.get(metric_name)
        return -self.nll if score is None else score


def pair_shuffled_sources(corpus: Corpus, tokenizer: PairTokenizer) -> list[tuple[int, int]]:
    """Some pairs of a corpus, spread evenly over all lengths, each with another whose source has as many words, or nearly."""
    word_counts = np.array([tokenizer.source.word_start_mask[corpus.source(row)].sum() for row in range(len(corpus))])
    order = np.lexsort((corpus.lengths()[0], word_counts)).tolist()
    stride = max(1, len(order) // NUM_SHUFFLED_PAIRS)
    return [(order[position], order[(position + 1) % len(order)]) for position in range(0, len(order), stride)]


def compute_mean_loss(
    model: Transformer,
    corpus: Corpus,
    plan: ComputePlan,
    config: TrainingConfig,
    *,
    start_id: int,
    pos_loss_weight: float = 0.0,
) -> tuple[float, float]:
    """Smoothed loss and un-smoothed negative log-likelihood, each per target token (end tokens counted), in nats."""
    batches = iter_batches_by_length(corpus, batch_tokens=config.batch_tokens, start_id=start_id)
    return _average_loss(model, batches, plan, config, pos_loss_weight)


@torch.no_grad()
def _average_loss(
    model: Transformer, batches: Iterable[Batch], plan: ComputePlan, config: TrainingConfig, pos_loss_weight: float
) -> tuple[float, float]:
    loss_sum = nll_sum = 0.0
    num_tokens = 0
    for cpu_batch in batches:
        batch = cpu_batch.to(plan.device)
        with plan.autocast():
            loss, nll = batch_loss(
                model,
                batch,
                epsilon=config.label_smoothing,
                smoothing_mode=config.label_smoothing_mode,
                pos_loss_weight=pos_loss_weight,
            )
        loss_sum += loss.item()
        nll_sum += nll.item()
        num_tokens += batch.num_target_tokens
    return loss_sum / num_tokens, nll_sum / num_tokens


def compute_perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood, but never infinite, which JSON could not hold."""
    return math.exp(min(nll, 700.0))


@dataclass(frozen=True)
class Sample:
    """One line with what the model made of it and what was expected; trees are in brackets."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class EvaluationResult:
    """Scores over a corpus, and the translations or trees that they are of."""

    scores: dict[str, Score]
    samples: tuple[Sample, ...]
    incomplete_outputs: dict[str, int]
    """How many outputs were cut ("truncated", "looped"), or not made at all ("refused")."""


def read_eval_pairs(corpus: CorpusConfig, recipe: Recipe, *, max_pairs: int | None = None) -> list[Pair]:
    """The pairs of a validation or test corpus as text, all, or `most` from all over it. Trees are such as can be scored."""
    task = recipe.task
    check_task_formats(recipe)
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    pairs = list(read_pairs(corpus, Path(recipe.data.root), **languages))
    if max_pairs is not None and max_pairs < len(
        pairs
    ):  # a corpus often is one document after the other, some harder than others
        pairs = [pairs[index * len(pairs) // max_pairs] for index in range(max_pairs)]
    if task.kind == "parsing":
        for pair in pairs:
            read_gold_tree(task, pair)
    return pairs


def evaluate(
    model: Transformer, tokenizer: PairTokenizer, recipe: Recipe, pairs: Sequence[Pair], decoding: DecodingConfig
) -> EvaluationResult:
    """Translate or parse the sources, and score what comes of them."""
    if recipe.task.kind == "parsing":
        return _evaluate_parses(model, tokenizer, recipe, pairs, decoding)
    translations = translate_lines(as_inference_model([model]), tokenizer, [pair.source for pair in pairs], recipe, decoding)
    texts = decode_best(translations, tokenizer)
    scores = score_translations(texts, [pair.target for pair in pairs], recipe)
    samples = tuple(Sample(pair.source, pair.target, text) for pair, text in zip(pairs, texts, strict=True))
    incomplete_outputs: Counter[str] = Counter()
    for sample, translation in zip(samples, translations, strict=True):
        status = "empty" if translation.status == "ok" and not sample.translation.strip() else translation.status
        incomplete_outputs[status] += status != "ok" and bool(sample.source.strip())
    return EvaluationResult(scores, samples, dict(+incomplete_outputs))


def _evaluate_parses(
    model: Transformer, tokenizer: PairTokenizer, recipe: Recipe, pairs: Sequence[Pair], decoding: DecodingConfig
) -> EvaluationResult:
    """The trees of the gold trees' words, under the automaton; with the gold tags where a recipe has them given."""
    gold_trees = [read_gold_tree(recipe.task, pair) for pair in pairs]
    words = [[leaf.word for leaf in get_leaves(tree)] for tree in gold_trees]
    tags = [[leaf.tag or "" for leaf in get_leaves(tree)] for tree in gold_trees] if recipe.task.pos_tags == "given" else None
    parses = parse_sentences([model], tokenizer, words, recipe, decoding, tags=tags)
    scores = score_parses([parse.tree for parse in parses], gold_trees)
    samples = tuple(
        Sample(" ".join(parse.words), format_tree(reference), format_tree(parse.tree) if parse.tree is not None else "")
        for reference, parse in zip(gold_trees, parses, strict=True)
    )
    incomplete_outputs: Counter[str] = Counter(parse.status for parse in parses if parse.status in ("truncated", "refused"))
    return EvaluationResult(scores, samples, dict(incomplete_outputs))
