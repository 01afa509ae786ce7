"""The rules that a recipe switches on, each with its name, the sentence that explains it, and what it drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dragoman.cleaning import filters as faults
from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.language_id import make_language_filter, make_script_filter
from dragoman.config import CleaningConfig, FilterName
from dragoman.errors import RecipeError

PairPredicate = Callable[[str, str], bool]
"""(source, target) → whether the pair is at fault."""

DUPLICATE_RULES = {
    "duplicate-pair": "An equal pair came before.",
    "duplicate-source": "A pair with the same source came before.",
}
"""Sentences of the rules that need more than a pair to see."""

# Cheap ones first; what a pair is dropped for is the first that holds.
RULE_ORDER = (
    "empty", "length", "ratio", "source-equals-target", "control", "urls", "numbers", "markup", "mojibake", "script", "eval-overlap",
    "language", *DUPLICATE_RULES,
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A reason to drop a pair: `drops(source, target)` says whether it holds."""

    name: str
    description: str
    is_faulty: PairPredicate


def build_rules(
    config: CleaningConfig,
    *,
    source_language: str,
    target_language: str,
    evaluation: EvaluationTexts | None,
    skip_filters: Sequence[FilterName] = (),
) -> list[Rule]:
    """The rules that look at one pair at a time, `empty` first; duplicates are for `DuplicateSearch`.

    Raises RecipeError where a rule needs a language or evaluation texts that are not given, and MissingExtraError where it
    needs a library that is not installed.
    """
    enabled_rules = _iter_enabled_rules(config, source_language, target_language, evaluation)
    rules = [
        Rule(name, description, make_predicate())
        for name, description, make_predicate in enabled_rules
        if name not in skip_filters
    ]
    return sorted(rules, key=lambda rule: RULE_ORDER.index(rule.name))


def _iter_enabled_rules(
    config: CleaningConfig, source_language: str, target_language: str, evaluation: EvaluationTexts | None
) -> Iterator[tuple[str, str, Callable[[], PairPredicate]]]:
    """Name, sentence and maker of each rule that is switched on."""
    yield "empty", "A side is empty or only white space.", lambda: faults.is_empty
    limits = {"words": config.max_words, "characters": config.max_characters}
    if limit_texts := [f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None]:
        predicate = partial(faults.is_too_long, max_words=config.max_words, max_characters=config.max_characters)
        yield "length", f"A side has more than {' or '.join(limit_texts)}.", lambda: predicate
    if (max_ratio := config.max_ratio) is not None:
        description = f"The longer side has over ten characters and more than {max_ratio:g} times those of the shorter."
        yield "ratio", description, lambda: partial(faults.is_out_of_ratio, max_ratio=max_ratio)
    if config.source_equals_target:
        yield "source-equals-target", "The sides are the same, save for case and spaces.", lambda: faults.is_identical
    if config.control_characters:
        description = "A side holds control characters, the replacement character, or code points that are nobody's."
        yield "control", description, lambda: faults.has_control_characters
    if config.urls:
        yield "urls", "The sides do not hold the same web and mail addresses.", lambda: faults.has_address_mismatch
    if config.numbers:
        description = "The sides do not hold the same numbers, however they are punctuated."
        yield "numbers", description, lambda: faults.has_number_mismatch
    if config.markup:
        yield "markup", "A side holds what is left of HTML, XML, wiki or template markup.", lambda: faults.has_markup
    if config.mojibake:
        yield "mojibake", "In a side, UTF-8 was once read as something else.", faults.make_mojibake_filter
    languages = {"source_language": source_language, "target_language": target_language}
    if (min_ratio := config.min_script_ratio) is not None:
        description = f"Less than {100 * min_ratio:g} % of a side's letters are in its language's script."
        yield "script", description, lambda: make_script_filter(min_ratio, **languages)
    if config.eval_overlap:
        description = "The source or target stands in data.valid or data.test, whatever its case and punctuation."
        yield "eval-overlap", description, lambda: _make_overlap_filter(evaluation)
    if (min_probability := config.min_language_probability) is not None:
        description = f"A side is in another language, at a certainty of at least {min_probability:g}."
        yield "language", description, lambda: make_language_filter(min_probability, **languages)


def _make_overlap_filter(evaluation: EvaluationTexts | None) -> PairPredicate:
    if evaluation is None:
        raise RecipeError("data.cleaning.eval_overlap has nothing to look for: give data.valid or data.test, or drop that rule")
    return evaluation.contains_side
