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

from dragoman.config import CorpusConfig, DecodingConfig, Recipe, TrainingConfig, section_with
from dragoman.data.collate import Batch, batches_in_order, collate, cut
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.prepare import VALID, Prepared, refuse_another_tasks_files
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.errors import RecipeError
from dragoman.evaluation.metrics import Score
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import speaker_of, start_id
from dragoman.tasks.parsing import gold_tree, parse_ids, score_parses
from dragoman.tasks.translation import best_texts, score_translations, translate_lines
from dragoman.training.device import Machine
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.trees.ptb import write
from dragoman.trees.tree import leaves

# Sentences of a validation that a listener is shown.
SHOWN = 5
# Of those, about so many have their sources shuffled.
SHUFFLED = 500


class Validator:
    """Judges a model on the recipe's validation set while it learns."""

    def __init__(self, recipe: Recipe, prepared: Prepared, machine: Machine, *, most: int | None) -> None:
        """`most`: positions that the model has, if it learns them. Raises RecipeError where a sentence is longer: pairs to
        learn from were cut to data.max_length, but those of validation stay as they are.
        """
        assert recipe.data.valid is not None
        self.recipe = recipe
        self.machine = machine
        self.tokeniser = prepared.tokeniser
        self.corpus = prepared.corpus(VALID)
        self.pairs = read_text(recipe.data.valid, recipe, most=recipe.training.num_validation_translations)
        self.shuffled = shuffled_sources(self.corpus, self.tokeniser)
        longest = max(int(lengths.max()) for lengths in self.corpus.lengths())
        if most is not None and longest > most:
            raise RecipeError(f"data.valid: {longest} tokens in a sentence, but model.max_positions = {most}; raise it")

    def judge(self, model: Transformer) -> Verdict:
        """Loss over the whole set, and BLEU or F1 of some sentences if the recipe asks for that."""
        config = self.recipe.training
        weight = self.recipe.task.pos_loss_weight if self.recipe.task.tagging else 0.0
        first = start_id(self.recipe.model)
        model.eval()
        try:
            loss, nll = mean_loss(model, self.corpus, self.machine, config, start_id=first, pos_loss_weight=weight)
            own, other = self._with_other_sources(model) if math.isfinite(nll) else (None, None)
            if not config.num_validation_translations or not math.isfinite(nll):
                return Verdict(loss, nll, None, (), nll_own_source=own, nll_shuffled_source=other)
            plain = {"method": "greedy", "nbest": 1, "mbr": "none", "mbr_candidates": None}
            greedy = section_with(self.recipe.decoding, plain, where="decoding")
            with self.machine.autocast():
                judgement = judge(model, self.tokeniser, self.recipe, self.pairs, greedy)
        finally:
            model.train()
        scores = {name: judgement.scores[name].value for name in ("f1", "f1_gold_tags") if name in judgement.scores}
        bleu = judgement.scores["bleu"].value if "bleu" in judgement.scores else None
        shown = judgement.samples[:SHOWN]
        return Verdict(loss, nll, bleu, shown, **scores, nll_own_source=own, nll_shuffled_source=other)

    def _with_other_sources(self, model: Transformer) -> tuple[float | None, float | None]:
        """Negative log-likelihood a token of some sentences with their own sources and with each other's; none of one alone."""
        config, rows = self.recipe.training, [pair for pair in self.shuffled if pair[0] != pair[1]]
        if not rows:
            return None, None

        def nll(which: int) -> float:
            lengths = [max(len(self.corpus.source(row[which])), len(self.corpus.target(row[0])) + 1) for row in rows]
            made = (
                collate(
                    [self.corpus.source(row[which]) for row in rows[part]],
                    [self.corpus.target(row[0]) for row in rows[part]],
                    start_id=start_id(self.recipe.model),
                )
                for part in cut(lengths, config.batch_tokens)
            )
            return _mean_over(model, made, self.machine, config, 0.0)[1]

        return nll(0), nll(1)


@dataclass(frozen=True)
class Verdict:
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

    def merit(self, by: str) -> float:
        """Higher is better."""
        score = {"bleu": self.bleu, "f1": self.f1}.get(by)
        return -self.nll if score is None else score


def shuffled_sources(corpus: Corpus, tokeniser: Tokeniser) -> list[tuple[int, int]]:
    """Some pairs of a corpus, spread evenly over all lengths, each with another whose source has as many words, or nearly."""
    words = np.array([tokeniser.source.begins[corpus.source(row)].sum() for row in range(len(corpus))])
    order = np.lexsort((corpus.lengths()[0], words)).tolist()
    step = max(1, len(order) // SHUFFLED)
    return [(order[place], order[(place + 1) % len(order)]) for place in range(0, len(order), step)]


def mean_loss(
    model: Transformer,
    corpus: Corpus,
    machine: Machine,
    config: TrainingConfig,
    *,
    start_id: int,
    pos_loss_weight: float = 0.0,
) -> tuple[float, float]:
    """Smoothed loss and un-smoothed negative log-likelihood, each per target token (end tokens counted), in nats."""
    batches = batches_in_order(corpus, batch_tokens=config.batch_tokens, start_id=start_id)
    return _mean_over(model, batches, machine, config, pos_loss_weight)


@torch.no_grad()
def _mean_over(
    model: Transformer, batches: Iterable[Batch], machine: Machine, config: TrainingConfig, pos_loss_weight: float
) -> tuple[float, float]:
    smoothed = likelihood = 0.0
    tokens = 0
    for made in batches:
        batch = made.to(machine.device)
        with machine.autocast():
            loss, nll = batch_loss(
                model, batch, epsilon=config.label_smoothing, form=config.label_smoothing_mode, pos_loss_weight=pos_loss_weight
            )
        smoothed += loss.item()
        likelihood += nll.item()
        tokens += batch.num_target_tokens
    return smoothed / tokens, likelihood / tokens


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood, but never infinite, which JSON could not hold."""
    return math.exp(min(nll, 700.0))


@dataclass(frozen=True)
class Sample:
    """One line with what the model made of it and what was expected; trees are in brackets."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Judgement:
    """Scores over a corpus, and the translations or trees that they are of."""

    scores: dict[str, Score]
    samples: tuple[Sample, ...]
    incomplete: dict[str, int]
    """How many outputs were cut ("truncated", "looped"), or not made at all ("refused")."""


def read_text(corpus: CorpusConfig, recipe: Recipe, *, most: int | None = None) -> list[Pair]:
    """The pairs of a validation or test corpus as text, all, or `most` from all over it. Trees are such as can be scored."""
    task = recipe.task
    refuse_another_tasks_files(recipe)
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    pairs = list(read_pairs(corpus, Path(recipe.data.root), **languages))
    if most is not None and most < len(pairs):  # a corpus often is one document after the other, some harder than others
        pairs = [pairs[number * len(pairs) // most] for number in range(most)]
    if task.kind == "parsing":
        for pair in pairs:
            gold_tree(task, pair)
    return pairs


def judge(
    model: Transformer, tokeniser: Tokeniser, recipe: Recipe, pairs: Sequence[Pair], decoding: DecodingConfig
) -> Judgement:
    """Translate or parse the sources, and score what comes of them."""
    if recipe.task.kind == "parsing":
        return _judge_parses(model, tokeniser, recipe, pairs, decoding)
    translated = translate_lines(speaker_of([model]), tokeniser, [pair.source for pair in pairs], recipe, decoding)
    texts = best_texts(translated, tokeniser)
    scores = score_translations(texts, [pair.target for pair in pairs], recipe)
    samples = tuple(Sample(pair.source, pair.target, text) for pair, text in zip(pairs, texts, strict=True))
    incomplete: Counter[str] = Counter()
    for sample, one in zip(samples, translated, strict=True):
        status = "empty" if one.status == "ok" and not sample.translation.strip() else one.status
        incomplete[status] += status != "ok" and bool(sample.source.strip())
    return Judgement(scores, samples, dict(+incomplete))


def _judge_parses(
    model: Transformer, tokeniser: Tokeniser, recipe: Recipe, pairs: Sequence[Pair], decoding: DecodingConfig
) -> Judgement:
    """The trees of the gold trees' words, under the automaton; with the gold tags where a recipe has them given."""
    gold = [gold_tree(recipe.task, pair) for pair in pairs]
    words = [[leaf.word for leaf in leaves(tree)] for tree in gold]
    tags = [[leaf.tag or "" for leaf in leaves(tree)] for tree in gold] if recipe.task.pos_tags == "given" else None
    parsed = parse_ids([model], tokeniser, words, recipe, decoding, tags=tags)
    scores = score_parses([one.tree for one in parsed], gold)
    samples = tuple(
        Sample(" ".join(one.words), write(wanted), write(one.tree) if one.tree is not None else "")
        for wanted, one in zip(gold, parsed, strict=True)
    )
    incomplete: Counter[str] = Counter(one.status for one in parsed if one.status in ("truncated", "refused"))
    return Judgement(scores, samples, dict(incomplete))
