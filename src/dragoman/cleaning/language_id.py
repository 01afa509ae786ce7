"""Which script and which language a side ought to be in, and whether it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dragoman.errors import MissingDependencyError, RecipeError

# What CLDR calls a script, where Unicode's characters know it by other names.
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

# Labels of the identifier that are one language, or are written so alike that a sentence does not tell them apart.
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


def make_script_filter(min_ratio: float, *, source_language: str, target_language: str) -> Callable[[str, str], bool]:
    """`(source, target)` → less than `share` of a side's letters are in its language's script, the likeliest one by CLDR.

    Letters that no script has to itself count for neither; a side without letters passes. A language code that names its script
    asks for that one, as sr-Latn does. Raises RecipeError where a language is not given or its script not known.
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
                f"task.{key} = {language!r}: its script {scripts[0]} is not known to data.cleaning.min_script_ratio"
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
    """The names of its language's script among Unicode's characters: more than one for Japanese and Korean."""
    primary, territory, script = _parse_language_code(key, language, "data.cleaning.min_script_ratio")
    if script is None:
        from babel.core import get_global

        likely_subtags = get_global("likely_subtags")
        likely_tag = likely_subtags.get(f"{primary}_{territory}") or likely_subtags.get(primary)
        if likely_tag is None:
            raise RecipeError(
                f"task.{key} = {language!r}: CLDR names no script for it, as data.cleaning.min_script_ratio needs; "
                f"write the script too, as in {primary}-Latn, or drop that rule"
            )
        script = str(likely_tag).split("_")[1]
    return _UNICODE_SCRIPTS.get(script, (script,))


def _parse_language_code(key: str, language: str, recipe_key: str) -> tuple[str, str | None, str | None]:
    """Language, territory and script of a code such as zh-Hant-TW, deu or pt_BR. Raises RecipeError."""
    if not language:
        raise RecipeError(f"{recipe_key} needs task.{key}: give its language code, such as en, or drop that rule")
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
        raise RecipeError(f"task.{key} = {language!r} is not a language code; write one such as en, de or zh-Hant") from None
    return primary, territory, script


def make_language_filter(min_probability: float, *, source_language: str, target_language: str) -> Callable[[str, str], bool]:
    """`(source, target)` → a side is in another language than its own, with at least this certainty (a probability).

    Text in no language, such as numbers and file names, passes, and so do varieties of a language that are labelled apart.
    At 0.5, among English, German, French and Chinese, under one sound sentence in a thousand is taken for another language
    (of short lines of software help, up to four), and 91 to 99 in a hundred are told that are (of those lines, 70 to 83).
    Raises RecipeError where a language is not given, or not known to the identifier.
    """
    source_label, target_label, classify = _load_identifier(
        _parse_language_code("source_language", source_language, "data.cleaning.min_language_probability")[0],
        _parse_language_code("target_language", target_language, "data.cleaning.min_language_probability")[0],
    )

    def is_in_other_language(text: str, expected_label: str) -> bool:
        label, probability = classify(text)
        return label != expected_label and probability >= min_probability and label != _NO_LANGUAGE

    return lambda source, target: is_in_other_language(source, source_label) or is_in_other_language(target, target_label)


@cache
def _load_identifier(source: str, target: str) -> tuple[str, str, Callable[[str], tuple[str, float]]]:
    """The labels of the two languages, and py3langid's `text → label, probability`, which takes half a second to load."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise MissingDependencyError("py3langid", "cleaning", "data.cleaning.min_language_probability") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known_labels = set(identifier.labels) - {_NO_LANGUAGE}
    chosen_labels, related_labels = list[str](), set[str]()
    for key, language in (("source_language", source), ("target_language", target)):
        related_group = next((group for group in _CONFUSABLE_LANGUAGES if language in group), {language})
        labels = [label for label in (language, *sorted(related_group)) if label in known_labels]
        if not labels:
            raise RecipeError(
                f"task.{key} = {language!r} is none of the {len(known_labels)} languages that data.cleaning.min_language_probability tells apart; "
                "drop that rule"
            )
        chosen_labels.append(labels[0])
        related_labels |= related_group
    # Left in, they would share the probability of a text with the language that it is in.
    identifier.set_languages([label for label in identifier.labels if label in chosen_labels or label not in related_labels])
    # The selection leaves the table column by column, though it is read row by row: a third slower.
    identifier.nb_ptc = np.ascontiguousarray(identifier.nb_ptc)
    return chosen_labels[0], chosen_labels[1], identifier.classify
