"""The filters that a recipe enables, each with its name, a sentence for the report, and its predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from dragoman.cleaning import filters
from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.language_id import make_language_filter, make_script_filter
from dragoman.config import CleaningConfig
from dragoman.errors import RecipeError

PairPredicate = Callable[[str, str], bool]
"""Function of source and target that returns whether the filter drops the pair."""

DUPLICATE_FILTERS = {
    "duplicate-pair": "An equal pair came before.",
    "duplicate-source": "A pair with the same source came before.",
}
"""Descriptions of the filters that compare pairs with each other."""

FILTER_KEYS = {
    "length": ("max_words", "max_characters"),
    "ratio": ("max_ratio",),
    "source-equals-target": ("source_equals_target",),
    "control": ("control_characters",),
    "urls": ("urls",),
    "numbers": ("numbers",),
    "markup": ("markup",),
    "mojibake": ("mojibake",),
    "script": ("min_script_ratio",),
    "eval-overlap": ("eval_overlap",),
    "language": ("min_language_probability",),
    "duplicate-pair": ("duplicate_pairs",),
    "duplicate-source": ("duplicate_sources",),
}
"""Keys of data.cleaning that configure each filter, in the order of the filters. The filter `empty` has none."""

FILTER_ORDER = ("empty", *FILTER_KEYS)
"""Fast filters come first. A pair counts under the first filter that drops it."""


@dataclass(frozen=True)
class PairFilter:
    """Filter that reads one pair at a time."""

    name: str
    description: str
    is_faulty: PairPredicate


def iter_enabled(
    config: CleaningConfig, source_language: str, target_language: str, evaluation: EvaluationTexts | None
) -> Iterator[tuple[str, str, Callable[[], PairPredicate]]]:
    """Yield name, description and predicate factory of each enabled filter that reads one pair at a time, in order.

    A factory raises RecipeError if its filter needs a language or evaluation texts that are missing, and MissingDependencyError
    if it needs a library that is not installed.
    """
    yield "empty", "A side is empty or only white space.", lambda: filters.is_empty
    limits = {"words": config.max_words, "characters": config.max_characters}
    if limit_texts := [f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None]:
        predicate = partial(filters.is_too_long, max_words=config.max_words, max_characters=config.max_characters)
        yield "length", f"A side has more than {' or '.join(limit_texts)}.", lambda: predicate
    if (max_ratio := config.max_ratio) is not None:
        description = f"The longer side has over ten characters and more than {max_ratio:g} times those of the shorter."
        yield "ratio", description, lambda: partial(filters.is_out_of_ratio, max_ratio=max_ratio)
    if config.source_equals_target:
        yield "source-equals-target", "The sides are equal, ignoring case and spaces.", lambda: filters.is_identical
    if config.control_characters:
        description = "A side holds control characters, U+FFFD, or unassigned or private code points."
        yield "control", description, lambda: filters.has_control_characters
    if config.urls:
        yield "urls", "The sides hold different web or mail addresses.", lambda: filters.has_address_mismatch
    if config.numbers:
        description = "The sides hold different numbers."
        yield "numbers", description, lambda: filters.has_number_mismatch
    if config.markup:
        yield "markup", "A side holds remains of HTML, XML, wiki or template markup.", lambda: filters.has_markup
    if config.mojibake:
        yield "mojibake", "A side holds UTF-8 that was decoded with a wrong encoding.", filters.make_mojibake_filter
    languages = {"source_language": source_language, "target_language": target_language}
    if (min_ratio := config.min_script_ratio) is not None:
        description = f"Less than {100 * min_ratio:g} % of a side's letters are in its language's script."
        yield "script", description, lambda: make_script_filter(min_ratio, **languages)
    if config.eval_overlap:
        description = "A side is also in data.valid or data.test, ignoring case and punctuation."
        yield "eval-overlap", description, lambda: _make_overlap_filter(evaluation)
    if (min_probability := config.min_language_probability) is not None:
        description = f"A side is in another language with a probability of at least {min_probability:g}."
        yield "language", description, lambda: make_language_filter(min_probability, **languages)


def _make_overlap_filter(evaluation: EvaluationTexts | None) -> PairPredicate:
    if evaluation is None:
        raise RecipeError(
            "data.cleaning.eval_overlap needs evaluation data: give data.valid or data.test, or drop it", code="missing-key"
        )
    return evaluation.contains_side
