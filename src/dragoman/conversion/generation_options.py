"""Search options of Hugging Face models: `generation_config.json`, or `config.json` in older folders."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.target import describe_beam
from dragoman.conversion.vocabulary_order import VocabularyOrder

GENERATION_FILE = "generation_config.json"
# Search options that are not converted, with the value that turns them off. In a beam, repetition_penalty divides
# log-probabilities in transformers, and logits in dragoman.
NEUTRAL_OPTIONS = {
    "do_sample": False,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "penalty_alpha": None,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def read_generation_settings(files: SourceFiles, settings: ModelSettings) -> ModelSettings:
    """Return the settings that hold the search options."""
    if GENERATION_FILE in files:
        return ModelSettings(files.read_json_object(GENERATION_FILE), files.folder / GENERATION_FILE)
    return settings


def convert_generation_options(
    files: SourceFiles,
    settings: ModelSettings,
    order: VocabularyOrder,
    *,
    allowed: Collection[str] = (),
    num_prompt_tokens: int = 0,
) -> dict[str, Any]:
    """Return the recipe section `decoding`.

    Args:
        files: files of the model
        settings: content of config.json
        order: order of the target vocabulary
        allowed: options that the caller converts itself
        num_prompt_tokens: tokens that each output begins with in transformers, but not in dragoman, such as its language

    Raises:
        BundleError: the source has an option that dragoman does not have.
    """
    generation = read_generation_settings(files, settings)
    for name, neutral in NEUTRAL_OPTIONS.items():
        if name not in allowed and generation.get(name, neutral) not in (neutral, None, []):
            raise generation.refuse(name, "it cannot be converted; remove it from the file to convert without it")
    early_stopping = generation.get("early_stopping") or False
    if early_stopping not in (True, False, "never"):
        raise generation.refuse("early_stopping", "it is true, false or 'never'")
    beam_size = generation.integer("num_beams", 1)
    num_positions = settings.integer("max_position_embeddings", 1024)
    max_length = generation.integer("max_new_tokens", generation.integer("max_length", num_positions))
    # min_length counts the start token, min_new_tokens does not. Neither counts the end token, like dragoman.
    min_length = generation.integer("min_new_tokens", max(0, generation.integer("min_length", 0) - 1))
    return {
        **describe_beam(beam_size),
        "length_penalty": "power",
        "alpha": generation.number("length_penalty", 1.0),
        "early_stopping": {True: "beam_full", "never": "exhaustive"}.get(early_stopping, "heuristic"),
        "max_source_tokens": num_positions,
        "max_extra_tokens": min(num_positions, max_length),
        "min_length": max(0, min_length - num_prompt_tokens),
        "no_repeat_ngram_size": generation.integer("no_repeat_ngram_size", 0),
        "suppress_tokens": _read_bad_words(generation, order),
    }


def _read_bad_words(generation: ModelSettings, order: VocabularyOrder) -> list[str]:
    """Return the pieces that no output contains. Padding and the start token never occur in one anyway."""
    pieces = []
    bad_words = generation.get("bad_words_ids") or []
    for words in bad_words if isinstance(bad_words, list) else [bad_words]:
        if not isinstance(words, list) or len(words) != 1 or words[0] not in order.rows:
            raise generation.refuse("bad_words_ids", "dragoman excludes single tokens of the vocabulary only")
        index = len(order) - 1 - order.rows[::-1].index(words[0])  # a start token that is text has two
        if index >= 4:
            pieces.append(order.pieces[index])
    return pieces
