"""The rules that a recipe switches on, each with its name, the sentence that explains it, and what it drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dragoman.cleaning import filters as faults
from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.language_id import language_finder, script_finder
from dragoman.config import CleaningConfig, RuleName
from dragoman.errors import RecipeError

Finder = Callable[[str, str], bool]
"""(source, target) → whether the pair is at fault."""

DUPLICATES = {
    "duplicate-pair": "An equal pair came before.",
    "duplicate-source": "A pair with the same source came before.",
}
"""Sentences of the rules that need more than a pair to see."""

# Cheap ones first; what a pair is dropped for is the first that holds.
ORDER = (
    "empty", "length", "ratio", "source-equals-target", "control", "urls", "numbers", "markup", "mojibake", "script", "eval-overlap",
    "language", *DUPLICATES,
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A reason to drop a pair: `drops(source, target)` says whether it holds."""

    name: str
    sentence: str
    drops: Finder


def rules_of(
    config: CleaningConfig,
    *,
    source_language: str,
    target_language: str,
    evaluation: EvaluationTexts | None,
    exempt: Sequence[RuleName] = (),
) -> list[Rule]:
    """The rules that look at one pair at a time, `empty` first; duplicates are for `DuplicateSearch`.

    Raises RecipeError where a rule needs a language or evaluation texts that are not given, and MissingExtraError where it
    needs a library that is not installed.
    """
    asked = _asked(config, source_language, target_language, evaluation)
    rules = [Rule(name, sentence, make()) for name, sentence, make in asked if name not in exempt]
    return sorted(rules, key=lambda rule: ORDER.index(rule.name))


def _asked(
    config: CleaningConfig, source_language: str, target_language: str, evaluation: EvaluationTexts | None
) -> Iterator[tuple[str, str, Callable[[], Finder]]]:
    """Name, sentence and maker of each rule that is switched on."""
    yield "empty", "A side is empty or only white space.", lambda: faults.is_empty
    limits = {"words": config.max_words, "characters": config.max_characters}
    if given := [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]:
        finder = partial(faults.is_too_long, max_words=config.max_words, max_characters=config.max_characters)
        yield "length", f"A side has more than {' or '.join(given)}.", lambda: finder
    if (most := config.max_ratio) is not None:
        sentence = f"The longer side has over ten characters and more than {most:g} times those of the shorter."
        yield "ratio", sentence, lambda: partial(faults.is_out_of_ratio, max_ratio=most)
    if config.source_equals_target:
        yield "source-equals-target", "The sides are the same, save for case and spaces.", lambda: faults.is_identical
    if config.control_characters:
        sentence = "A side holds control characters, the replacement character, or code points that are nobody's."
        yield "control", sentence, lambda: faults.has_control_characters
    if config.urls:
        yield "urls", "The sides do not hold the same web and mail addresses.", lambda: faults.have_other_addresses
    if config.numbers:
        sentence = "The sides do not hold the same numbers, however they are punctuated."
        yield "numbers", sentence, lambda: faults.have_other_numbers
    if config.markup:
        yield "markup", "A side holds what is left of HTML, XML, wiki or template markup.", lambda: faults.has_markup
    if config.mojibake:
        yield "mojibake", "In a side, UTF-8 was once read as something else.", faults.mojibake_finder
    languages = {"source_language": source_language, "target_language": target_language}
    if (share := config.min_script_ratio) is not None:
        sentence = f"Less than {100 * share:g} % of a side's letters are in its language's script."
        yield "script", sentence, lambda: script_finder(share, **languages)
    if config.eval_overlap:
        sentence = "The source or target stands in data.valid or data.test, whatever its case and punctuation."
        yield "eval-overlap", sentence, lambda: _overlap_finder(evaluation)
    if (certainty := config.min_language_probability) is not None:
        sentence = f"A side is in another language, at a certainty of at least {certainty:g}."
        yield "language", sentence, lambda: language_finder(certainty, **languages)


def _overlap_finder(evaluation: EvaluationTexts | None) -> Finder:
    if evaluation is None:
        raise RecipeError("data.cleaning.eval_overlap has nothing to look for: give data.valid or data.test, or drop that rule")
    return evaluation.overlap
