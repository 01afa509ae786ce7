"""How good the model is on text it did not learn from: loss, perplexity, and translations judged by BLEU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from dragoman.config import CorpusConfig, DecodingConfig, Recipe, TrainingConfig, section_with
from dragoman.data.batches import batches_in_order
from dragoman.data.corpus import Corpus
from dragoman.data.prepare import VALID, Prepared
from dragoman.data.subword import Tokeniser
from dragoman.errors import RecipeError
from dragoman.evaluation.metrics import Score
from dragoman.formats.pair import Pair
from dragoman.formats.read import read_pairs
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import speaker_of, start_id
from dragoman.tasks.translation import best_texts, score_translations, translate_lines
from dragoman.training.loss import batch_loss
from dragoman.training.machine import Machine

# Sentences of a validation that a listener is shown.
SHOWN = 5


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
        self.pairs = read_text(recipe.data.valid, recipe, most=recipe.training.validate_sentences)
        longest = max(int(lengths.max()) for lengths in self.corpus.lengths())
        if most is not None and longest > most:
            raise RecipeError(f"data.valid: {longest} tokens in a sentence, but model.max_positions = {most}; raise it")

    def judge(self, model: Transformer) -> Verdict:
        """Loss over the whole set, and BLEU of its first sentences if the recipe asks for that."""
        config = self.recipe.training
        model.eval()
        try:
            loss, nll = mean_loss(model, self.corpus, self.machine, config, start_id=start_id(self.recipe.model))
            if not config.validate_sentences or not math.isfinite(nll):
                return Verdict(loss, nll, None, ())
            greedy = section_with(self.recipe.decoding, {"method": "greedy", "nbest": 1}, where="decoding")
            with self.machine.autocast():
                judgement = judge(model, self.tokeniser, self.recipe, self.pairs, greedy)
        finally:
            model.train()
        return Verdict(loss, nll, judgement.scores["bleu"].value, judgement.samples[:SHOWN])


@dataclass(frozen=True)
class Verdict:
    """What a validation found: smoothed loss and negative log-likelihood a token, in nats; BLEU, and sentences to look at."""

    loss: float
    nll: float
    bleu: float | None
    samples: tuple[Sample, ...]

    def merit(self, by: str) -> float:
        """Higher is better."""
        return self.bleu if by == "bleu" and self.bleu is not None else -self.nll


@torch.no_grad()
def mean_loss(
    model: Transformer, corpus: Corpus, machine: Machine, config: TrainingConfig, *, start_id: int
) -> tuple[float, float]:
    """Smoothed loss and un-smoothed negative log-likelihood, each per target token (end tokens counted), in nats."""
    smoothed = likelihood = 0.0
    tokens = 0
    for made in batches_in_order(corpus, batch_tokens=config.batch_tokens, start_id=start_id):
        batch = made.to(machine.device)
        with machine.autocast():
            loss, nll = batch_loss(model, batch, epsilon=config.label_smoothing, form=config.smoothing_form)
        smoothed += loss.item()
        likelihood += nll.item()
        tokens += batch.num_target_tokens
    return smoothed / tokens, likelihood / tokens


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood, but never infinite, which JSON could not hold."""
    return math.exp(min(nll, 700.0))


@dataclass(frozen=True)
class Sample:
    """One line with what the model made of it and what was expected."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Judgement:
    """Scores over a corpus, and the translations that they are of."""

    scores: dict[str, Score]
    samples: tuple[Sample, ...]
    incomplete: dict[str, int]
    """How many translations were cut ("truncated", "looped"), or not made at all ("refused")."""


def read_text(corpus: CorpusConfig, recipe: Recipe, *, most: int | None = None) -> list[Pair]:
    """The pairs of a validation or test corpus as text, all of them, or the first `most`."""
    task = recipe.task
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    return list(islice(read_pairs(corpus, Path(recipe.data.root), **languages), most))


def judge(
    model: Transformer, tokeniser: Tokeniser, recipe: Recipe, pairs: Sequence[Pair], decoding: DecodingConfig
) -> Judgement:
    """Translate the sources and score the translations."""
    translated = translate_lines(speaker_of([model]), tokeniser, [pair.source for pair in pairs], recipe, decoding)
    texts = best_texts(translated, tokeniser)
    scores = score_translations(texts, [pair.target for pair in pairs], recipe)
    samples = tuple(Sample(pair.source, pair.target, text) for pair, text in zip(pairs, texts, strict=True))
    incomplete: Counter[str] = Counter(one.status for one in translated if one.status in ("truncated", "looped", "refused"))
    return Judgement(scores, samples, dict(incomplete))
