"""Measurements for a bundle with new weights: alignment head, calibration of the confidence, and usual lengths.

They come from the validation pairs and from a sample of the training pairs. The validation pairs are read from their files, or
from the prepared data if the files are no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.bundle import BundleMetadata
from dragoman.config import ModelConfig, Recipe, TaskConfig
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
from dragoman.text.length_ratios import LengthRatios, measure_length_ratios
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.validation import get_references, group_by_languages, read_validation_pairs

# Number of validation pairs for the choice of the alignment head. More pairs would hardly change the choice.
NUM_ALIGNMENT_PAIRS = 1000
# Fewer pairs choose a worse head than the one of the initial bundle.
MIN_ALIGNMENT_PAIRS = 100
# Number of training pairs of a corpus for the quantiles of lengths; 20 of them are beyond each limit.
NUM_LENGTH_PAIRS = 20_000


def measure_parts(
    metadata: BundleMetadata,
    recipe: Recipe,
    prepared: PreparedData,
    weights: dict[str, torch.Tensor],
    *,
    known: BundleMetadata,
    location: Path,
    device: torch.device,
) -> BundleMetadata:
    """Return the metadata with the parts that the pairs of the run suffice to measure for these weights.

    known: metadata of the bundle that the weights come from, whose parts are better than measurements on a few pairs
    location: the file or folder that error messages name
    device: device of the calibration
    """
    pairs = read_pairs_of_run(recipe, prepared, recipe.training.num_validation_translations or NUM_ALIGNMENT_PAIRS)
    alignment = get_guided_head(recipe.training, recipe.alignment_layer)
    if known.alignment is None or len(pairs) >= MIN_ALIGNMENT_PAIRS:
        alignment = _choose_alignment(recipe, prepared.tokenizer, pairs, weights, location=location)
    confidence = _calibrate_confidence(
        recipe, prepared, weights, alignment or known.alignment, location=location, device=device
    )
    length_ratios = measure_corpus_lengths(recipe.training_directions, prepared) if recipe.task.has_text_target else None
    measured = {(item.source_language, item.target_language) for item in length_ratios or ()}
    others = [item for item in known.length_ratios or () if (item.source_language, item.target_language) not in measured]
    return replace(
        metadata, alignment=alignment, confidence=confidence, length_ratios=[*(length_ratios or ()), *others] or None
    )


def read_pairs_of_run(recipe: Recipe, prepared: PreparedData, max_pairs: int) -> list[Pair]:
    """Read at most `max_pairs` validation pairs as text, from their files or else from the prepared data; perhaps none."""
    if not recipe.data.evaluation_corpora(VALID):
        return []
    with suppress(DataError):
        return read_validation_pairs(recipe, max_pairs=max_pairs)
    # Prepared trees have lost their words, and prepared pairs of many languages do not tell which languages they are of.
    if not recipe.task.has_text_target or recipe.tokenizer.language_token is not None:
        return []
    corpus, tokenizer = prepared.corpus(VALID), prepared.tokenizer
    num_pairs = min(len(corpus), max_pairs)
    indices = [position * len(corpus) // num_pairs for position in range(num_pairs)]
    end = -1 if tokenizer.append_source_eos else None
    return [
        Pair(
            tokenizer.source.decode(corpus.source(index).tolist()[:end]), tokenizer.target.decode(corpus.target(index).tolist())
        )
        for index in indices
    ]


def _choose_alignment(
    recipe: Recipe, tokenizer: PairTokenizer, pairs: Sequence[Pair], weights: dict[str, torch.Tensor], *, location: Path
) -> AlignmentHead | None:
    """Return the attention head for word alignments; None if no pairs show which head aligns best.

    A model of many languages has one head for all: that of the first pair of languages.
    """
    guided_head_ref, pairs = get_guided_head(recipe.training, recipe.alignment_layer), pairs[:NUM_ALIGNMENT_PAIRS]
    if not pairs or not recipe.task.has_text_target:
        return guided_head_ref
    languages, indices = next(iter(group_by_languages(pairs).items()))
    if languages is not None:
        tokenizer = tokenizer.select_languages(*languages, zero_shot=True)
        pairs = [pairs[index] for index in indices]
    decoder = TorchForcedDecoder(_build_model(recipe.model, recipe.task, tokenizer, weights, location=location))
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    candidates = None if guided_head_ref is None else [guided_head_ref]
    return choose_alignment_head(decoder, tokenizer, recipe.model, sources, targets, candidates=candidates)


def _calibrate_confidence(
    recipe: Recipe,
    prepared: PreparedData,
    weights: dict[str, torch.Tensor],
    alignment: AlignmentHead | None,
    *,
    location: Path,
    device: torch.device,
) -> ConfidenceCalibration | None:
    """Return the calibration of the confidence on the validation set; None for a parser and for a small or missing set.

    A model of many languages has none, because the signals of its pairs of languages differ. A model without cross-attention
    lacks one of the signals.
    """
    has_one_pair = recipe.task.has_text_target and recipe.tokenizer.language_token is None
    if not has_one_pair or not recipe.model.num_cross_attentions:
        return None
    pairs = read_pairs_of_run(recipe, prepared, MAX_CALIBRATION_SENTENCES)
    if len(pairs) < MIN_CALIBRATION_SENTENCES:
        return None
    model = _build_model(recipe.model, recipe.task, prepared.tokenizer, weights, location=location).to(device)
    sources, references = [pair.source for pair in pairs], get_references(pairs, recipe.tokenizer)
    inference_model, decoder = as_inference_model([model]), TorchForcedDecoder(model)
    return calibrate_model(inference_model, decoder, prepared.tokenizer, recipe, sources, references, head=alignment)


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


def _build_model(
    config: ModelConfig, task: TaskConfig, tokenizer: PairTokenizer, weights: dict[str, torch.Tensor], *, location: Path
) -> Transformer:
    with torch.device("meta"):
        model = assemble_model(
            config,
            source_vocab_size=len(tokenizer.source),
            target_vocab_size=len(tokenizer.target),
            **parser_options(task),
        )
    load_weights(model, weights, location=location)
    return model.eval()
