"""Filters that compare each side's script and language with those of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dragoman.errors import MissingDependencyError, RecipeError
from dragoman.text.language_identifier import make_identifier

# Unicode script names of CLDR's script codes that cover several scripts or have another name.
_UNICODE_SCRIPTS = {
    "Aran": ("Arab",),
    "Cyrs": ("Cyrl",),
    "Hanb": ("Hani", "Bopo"),
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Hrkt": ("Hira", "Kana"),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Latf": ("Latn",),
    "Latg": ("Latn",),
}

# Labels of the language identifier that are one language, or too similar to distinguish in one sentence.
_CONFUSABLE_LANGUAGES = (
    {"ar", "ary", "arz"},
    {"bs", "hr", "sr"},
    {"el", "grc"},
    {"en", "pcm"},
    {"ff", "fuv"},
    {"fr", "gcf", "gcr"},
    {"gn", "gug"},
    {"he", "hbo"},
    {"ki", "kik"},
    {"ku", "sdh"},
    {"nb", "nn", "no"},
    {"uz", "uzs"},
    {"wuu", "yue", "zh"},
)
_NO_LANGUAGE = "zxx"
MAX_IDENTIFIED_CHARACTERS = 4096
"""Characters of a text whose language is identified. The library's time grows with the square of a run of marks."""


def make_script_filter(min_ratio: float, *, source_language: str, target_language: str) -> Callable[[str, str], bool]:
    """Return a predicate: less than `min_ratio` of a side's letters are in the script of its language.

    The script is the most likely one by CLDR, or the one in the language code, as in sr-Latn. Letters that several scripts
    share do not count. A side without letters passes.

    Raises RecipeError if a language is missing or its script unknown, and MissingDependencyError if a library is missing.
    """
    try:
        import regex
    except ImportError as error:
        raise MissingDependencyError("regex", "cleaning", "data.cleaning.min_script_ratio") from error

    letter_pattern = regex.compile(r"[\p{L}--[\p{Script=Zyyy}\p{Script=Zinh}]]", flags=regex.V1)

    def make_side_filter(key: str, language: str) -> Callable[[str], bool]:
        scripts = _find_scripts(key, language)
        try:
            own_scripts = "".join(rf"\p{{Script={script}}}" for script in scripts)
            foreign_pattern = regex.compile(rf"[\p{{L}}--[\p{{Script=Zyyy}}\p{{Script=Zinh}}{own_scripts}]]", flags=regex.V1)
        except regex.error:
            raise RecipeError(
                f"task.{key} = {language!r}: data.cleaning.min_script_ratio does not know its script {scripts[0]}; drop it"
            ) from None
        is_latin = "Latn" in scripts

        def is_in_foreign_script(text: str) -> bool:
            if is_latin and text.isascii():
                return False
            if foreign_pattern.search(text) is None:
                return False
            num_letters = len(letter_pattern.findall(text))
            return num_letters - len(foreign_pattern.findall(text)) < min_ratio * num_letters

        return is_in_foreign_script

    is_foreign_source = make_side_filter("source_language", source_language)
    is_foreign_target = make_side_filter("target_language", target_language)
    return lambda source, target: is_foreign_source(source) or is_foreign_target(target)


def _find_scripts(key: str, language: str) -> tuple[str, ...]:
    """Return the Unicode names of a language's scripts: several for Japanese and Korean, one for most languages."""
    primary, territory, script = _parse_language_code(key, language, "data.cleaning.min_script_ratio")
    if script is None:
        from babel.core import get_global

        likely_subtags = get_global("likely_subtags")
        likely_tag = likely_subtags.get(f"{primary}_{territory}") or likely_subtags.get(primary)
        if likely_tag is None:
            raise RecipeError(
                f"task.{key} = {language!r}: CLDR has no script for it, which data.cleaning.min_script_ratio needs; "
                f"add the script, as in {primary}-Latn, or drop min_script_ratio"
            )
        script = str(likely_tag).split("_")[1]
    return _UNICODE_SCRIPTS.get(script, (script,))


def _parse_language_code(key: str, language: str, recipe_key: str) -> tuple[str, str | None, str | None]:
    """Return language, territory and script of a code such as zh-Hant-TW, deu or pt_BR.

    Raises RecipeError if the code is empty or invalid.
    """
    if not language:
        raise RecipeError(
            f"{recipe_key} needs task.{key}: give its language code, such as en, or drop {recipe_key}", code="missing-key"
        )
    try:
        from babel.core import get_global, parse_locale
    except ImportError as error:
        raise MissingDependencyError("Babel", "cleaning", recipe_key) from error
    try:
        primary, territory, script = parse_locale(language.replace("-", "_"))[:3]
        alias = get_global("language_aliases").get(primary)
        if alias is not None:
            primary, _, likely_script = parse_locale(alias)[:3]
            script = script or likely_script
    except ValueError:
        raise RecipeError(f"task.{key} = {language!r} is not a language code; give one such as en, de or zh-Hant") from None
    return primary, territory, script


def make_language_filter(min_probability: float, *, source_language: str, target_language: str) -> Callable[[str, str], bool]:
    """Return a predicate: a side is in another language with at least this probability.

    Text without a language, such as numbers and file names, passes, and so do varieties of a language with labels of their own.
    For English, German, French and Chinese at 0.5, the filter drops under one correct sentence in a thousand and finds 91 to
    99 % of the foreign ones. For short lines of software help the figures are four in a thousand and 70 to 83 %.

    Raises RecipeError if a language is missing or unknown to the identifier, and MissingDependencyError if a library is
    missing.
    """
    source_label, target_label, classify = _load_identifier(
        _parse_language_code("source_language", source_language, "data.cleaning.min_language_probability")[0],
        _parse_language_code("target_language", target_language, "data.cleaning.min_language_probability")[0],
    )

    def is_in_other_language(text: str, expected_label: str) -> bool:
        label, probability = classify(text[:MAX_IDENTIFIED_CHARACTERS])
        return label != expected_label and probability >= min_probability and label != _NO_LANGUAGE

    return lambda source, target: is_in_other_language(source, source_label) or is_in_other_language(target, target_label)


@cache
def _load_identifier(source: str, target: str) -> tuple[str, str, Callable[[str], tuple[str, float]]]:
    """Return the labels of the two languages, and py3langid's function from a text to label and probability.

    The restriction is cached.
    """
    try:
        identifier = make_identifier(norm_probs=True)
    except ImportError as error:
        raise MissingDependencyError("py3langid", "cleaning", "data.cleaning.min_language_probability") from error
    known_labels = set(identifier.labels) - {_NO_LANGUAGE}
    chosen_labels, related_labels = list[str](), set[str]()
    for key, language in (("source_language", source), ("target_language", target)):
        related_group = next((group for group in _CONFUSABLE_LANGUAGES if language in group), {language})
        labels = [label for label in (language, *sorted(related_group)) if label in known_labels]
        if not labels:
            raise RecipeError(
                f"task.{key} = {language!r} is not one of the {len(known_labels)} languages that "
                "data.cleaning.min_language_probability can identify; drop min_language_probability"
            )
        chosen_labels.append(labels[0])
        related_labels |= related_group
    # Related labels would share the probability of a text with its language, so they are excluded.
    identifier.set_languages([label for label in identifier.labels if label in chosen_labels or label not in related_labels])
    # The selection leaves the table in column order, which makes row access a third slower.
    identifier.nb_ptc = np.ascontiguousarray(identifier.nb_ptc)
    return chosen_labels[0], chosen_labels[1], identifier.classify
