"""Typed keyword arguments for the keys of the [decoding] section."""

from __future__ import annotations

from typing import Literal, TypedDict


class DecodingOptions(TypedDict, total=False):
    """Keys of the recipe's [decoding] section that a call may change, for example `translate(lines, beam_size=5)`.

    `DecodingConfig` documents each key and checks its value. A test keeps both lists of keys and types equal.
    """

    method: Literal["beam", "greedy", "sample"]
    beam_size: int
    length_penalty: Literal["gnmt", "power", "none"]
    alpha: float
    max_extra_tokens: int
    max_source_tokens: int
    long_input: Literal["split", "error"]
    early_stopping: Literal["exhaustive", "worst_finished", "best", "beam_full", "heuristic"]
    nbest: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    num_beam_groups: int
    diversity_penalty: float
    min_length: int
    no_repeat_ngram_size: int
    repetition_penalty: float
    coverage_penalty: float
    suppress_tokens: list[str]
    repetition_window: int
    min_length_ratio: float
    replace_unknowns: bool
    unknown_dictionary: str | None
    mbr: Literal["none", "chrf", "bleu", "comet"]
    mbr_model: str | None
    mbr_candidates: int | None
    source_language: str | None
    target_language: str | None
    zero_shot: bool
    batch_tokens: int
