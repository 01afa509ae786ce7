"""Measurements for a bundle with new weights: alignment head, calibration of the confidence, and usual lengths.

They come from the validation pairs and from a sample of the training pairs. The validation pairs are read from their files, or
from the prepared data if the files are no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path

import torch

from dragoman.bundle import BundleMetadata
from dragoman.config import Recipe
from dragoman.config.data_config import Direction
from dragoman.data.prepare import VALID, PreparedData
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.model.factory import assemble_model
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights
from dragoman.parsing.sentence_parser import parser_options
from dragoman.tasks.attention_alignment import AlignmentHead, choose_alignment_head, get_guided_head
from dragoman.tasks.confidence import (
    MAX_CALIBRATION_SENTENCES,
    MIN_CALIBRATION_SENTENCES,
    ConfidenceCalibration,
    calibrate_model,
)
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import LineSearch
from dragoman.text.length_ratios import LengthRatios, measure_length_ratios
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.validation import get_references, group_by_languages, read_evaluation_pairs

# Number of validation pairs for the choice of the alignment head. More pairs would hardly change the choice.
NUM_ALIGNMENT_PAIRS = 1000
# Tokens of the pairs for the head and for the calibration. Characters, pixels and sounds make pairs long.
MAX_ALIGNMENT_TOKENS = 100_000
MAX_CALIBRATION_TOKENS = 50_000
# Fewer pairs choose a worse head than the one of the initial bundle.
MIN_ALIGNMENT_PAIRS = 100
# Number of training pairs of a corpus for the quantiles of lengths; 20 of them are beyond each limit.
NUM_LENGTH_PAIRS = 20_000


@dataclass(frozen=True)
class RunMeasurement:
    """Measurement of the parts of a bundle on the pairs of a run.

    location: the file or folder that error messages name
    device: device of the calibration
    """

    recipe: Recipe
    prepared: PreparedData
    weights: dict[str, torch.Tensor]
    location: Path
    device: torch.device

    def measure_parts(self, metadata: BundleMetadata, known: BundleMetadata) -> BundleMetadata:
        """Return the metadata with the parts that the pairs of the run suffice to measure for these weights.

        known: metadata of the bundle that the weights come from, whose parts are better than measurements on a few pairs
        """
        recipe = self.recipe
        pairs = self.read_pairs(recipe.training.num_validation_translations or NUM_ALIGNMENT_PAIRS)
        alignment = get_guided_head(recipe.training, recipe.alignment_layer)
        if known.alignment is None or len(pairs) >= MIN_ALIGNMENT_PAIRS:
            alignment = self._choose_alignment(pairs[:NUM_ALIGNMENT_PAIRS])
        confidence = self._calibrate_confidence(alignment or known.alignment)
        has_text = recipe.task.has_text_target
        length_ratios = measure_corpus_lengths(recipe.training_directions, self.prepared) if has_text else None
        measured = {(item.source_language, item.target_language) for item in length_ratios or ()}
        others = [item for item in known.length_ratios or () if (item.source_language, item.target_language) not in measured]
        ratios = [*(length_ratios or ()), *others] or None
        return replace(metadata, alignment=alignment, confidence=confidence, length_ratios=ratios)

    def read_pairs(self, max_pairs: int) -> list[Pair]:
        """Read at most `max_pairs` validation pairs as text, from their files or else from the prepared data; perhaps none."""
        if not self.recipe.data.evaluation_corpora(VALID):
            return []
        with suppress(DataError):
            pairs_by_name = read_evaluation_pairs(self.recipe, VALID, max_pairs=max_pairs)
            return [pair for pairs in pairs_by_name.values() for pair in pairs]
        # Prepared trees have lost their words, and prepared pairs of many languages do not tell which languages they are of.
        if not self.recipe.task.has_text_target or self.recipe.tokenizer.language_token is not None:
            return []
        corpus, tokenizer = self.prepared.corpus(VALID), self.prepared.tokenizer
        num_pairs = min(len(corpus), max_pairs)
        indices = [position * len(corpus) // num_pairs for position in range(num_pairs)]
        (start, target_start), end = tokenizer.prefix_lengths, -1 if tokenizer.append_source_eos else None
        return [
            Pair(
                tokenizer.source.decode(corpus.source(index).tolist()[start:end]),
                tokenizer.target.decode(corpus.target(index).tolist()[target_start:]),
            )
            for index in indices
        ]

    def _choose_alignment(self, pairs: Sequence[Pair]) -> AlignmentHead | None:
        """Return the attention head for word alignments; None if no pairs show which head aligns best.

        A model of many languages has one head for all: that of the first pair of languages.
        """
        recipe, tokenizer = self.recipe, self.prepared.tokenizer
        guided_head = get_guided_head(recipe.training, recipe.alignment_layer)
        if not pairs or not recipe.task.has_text_target:
            return guided_head
        languages, indices = next(iter(group_by_languages(pairs).items()))
        if languages is not None:
            tokenizer = tokenizer.select_languages(*languages, zero_shot=True)
            pairs = [pairs[index] for index in indices]
        pairs = limit_tokens(tokenizer, pairs, MAX_ALIGNMENT_TOKENS, MIN_ALIGNMENT_PAIRS)
        decoder = TorchForcedDecoder(self._build_model())
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        candidates = None if guided_head is None else [guided_head]
        return choose_alignment_head(decoder, tokenizer, recipe.model, sources, targets, candidates=candidates)

    def _calibrate_confidence(self, alignment: AlignmentHead | None) -> ConfidenceCalibration | None:
        """Return the calibration of the confidence on the validation set; None for a parser and for a small or missing set.

        A model of many languages has none, because the signals of its pairs of languages differ. A model without
        cross-attention lacks one of the signals.
        """
        recipe = self.recipe
        has_one_pair = recipe.task.has_text_target and recipe.tokenizer.language_token is None
        if not has_one_pair or not recipe.model.num_cross_attentions:
            return None
        pairs = self.read_pairs(MAX_CALIBRATION_SENTENCES)
        pairs = limit_tokens(self.prepared.tokenizer, pairs, MAX_CALIBRATION_TOKENS, MIN_CALIBRATION_SENTENCES)
        if len(pairs) < MIN_CALIBRATION_SENTENCES:
            return None
        model = self._build_model().to(self.device)
        search = LineSearch(
            as_inference_model([model]),
            self.prepared.tokenizer,
            recipe.task,
            recipe.decoding,
            get_decoder_start_id(recipe.model),
            TorchForcedDecoder(model),
        )
        sources, references = [pair.source for pair in pairs], get_references(pairs, recipe.tokenizer)
        return calibrate_model(search, sources, references, head=alignment)

    def _build_model(self) -> Transformer:
        tokenizer = self.prepared.tokenizer
        with torch.device("meta"):
            model = assemble_model(
                self.recipe.model,
                source_vocab_size=len(tokenizer.source),
                target_vocab_size=len(tokenizer.target),
                **parser_options(self.recipe.task),
            )
        load_weights(model, self.weights, location=self.location)
        return model.eval()


def limit_tokens(tokenizer: PairTokenizer, pairs: Sequence[Pair], max_tokens: int, min_pairs: int) -> list[Pair]:
    """Return the first pairs with at most `max_tokens` tokens, and at least `min_pairs` if there are so many."""
    sizes = accumulate(len(tokenizer.encode_source(pair.source)) + len(tokenizer.encode_target(pair.target)) for pair in pairs)
    return list(pairs[: max(min_pairs, sum(1 for _ in takewhile(lambda size: size <= max_tokens, sizes)))])


def measure_corpus_lengths(directions: Mapping[str, Direction], prepared: PreparedData) -> list[LengthRatios] | None:
    """Return the usual lengths of translations for each pair of languages, by a sample of the training pairs."""
    lengths: dict[tuple[str, str], list[tuple[int, int]]] = {}
    tokenizer, skipped = prepared.tokenizer, prepared.tokenizer.prefix_lengths
    for name, direction in directions.items():
        corpus = prepared.corpus(name)
        num_pairs = min(len(corpus), NUM_LENGTH_PAIRS)
        indices = [position * len(corpus) // num_pairs for position in range(num_pairs)]
        lengths.setdefault(direction.languages, []).extend(
            (
                len(tokenizer.source.decode(corpus.source(index)[skipped[0] :].tolist())),
                len(tokenizer.target.decode(corpus.target(index)[skipped[1] :].tolist())),
            )
            for index in indices
        )
    ratios = [measure_length_ratios(pairs, *languages) for languages, pairs in lengths.items()]
    return [item for item in ratios if item is not None] or None
