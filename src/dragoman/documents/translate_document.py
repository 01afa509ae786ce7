"""Translation of a document: which units are translated, by a translation memory or a model, and what is checked."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Literal, TypeVar

from dragoman.documents.cue_text import split_for_cues
from dragoman.documents.document import (
    Document,
    Unit,
    UnitTranslation,
    UnwritableUnitsError,
    add_plural_forms,
    check_written,
    list_all_units,
    write_document,
)
from dragoman.documents.earlier_output import pair_units
from dragoman.documents.icu_message import IcuMessage, has_branches, pair_sentences, read_message
from dragoman.documents.plural_forms import get_number_like_one, insert_number, lacks_number, remove_ordinal_ends
from dragoman.documents.reading import check_goes_on
from dragoman.documents.reasons import describe_flags
from dragoman.documents.script_languages import count_letters
from dragoman.documents.subtitles import SubtitleLimits, break_lines
from dragoman.documents.translation_memory import MemoryMatch, TranslationMemory
from dragoman.documents.unit_selection import (
    ALL_KEYS,
    KeyGlobs,
    Scope,
    add_common_rules,
    is_message,
    list_selected,
    unit_has_language,
)
from dragoman.errors import DataError
from dragoman.inference.text_options import ModelLimits, TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.unit_weights import compute_unit_weights
from dragoman.inference.whole_texts import LineRequest, TextTranslation, TranslateLines, translate_texts
from dragoman.languages import is_foreign, is_same_language, is_spaced_language
from dragoman.text.accelerators import find_accelerator
from dragoman.text.code_check import compare_codes
from dragoman.text.guards import check_translation
from dragoman.text.inline_codes import CodedText, Markup, Point, list_equal_tags, list_leaves, list_texts, read_inline
from dragoman.text.inline_rules import InlineRules
from dragoman.text.projection import split_units
from dragoman.text.word_codes import mark_word_codes

if TYPE_CHECKING:
    from dragoman.text.glossary import Glossary, GlossaryEntry, TermUse

Origin = Literal["model", "memory", "file"]
"""Origin of a translation; "file" for one that the file had already, and for a unit without one."""
_T = TypeVar("_T")

WINDOW = 256
"""Most texts that are translated between two reports of progress."""
WINDOW_CHARACTERS = 100_000
"""Most characters of these texts, unless one text is longer. A text of short tags takes 500 bytes of memory for each."""
MAX_CACHED_BYTES = 2**24
"""Size of the results of the model that are kept for equal lines."""
MAX_ROUNDS = 20
"""Most attempts to write a document without the units that it names as those that cannot be written."""
MAX_ATTEMPTS = 200
"""Most attempts to write a document in all. What was not tried by then stays in its language."""
UNWRITABLE_NOTE = "the file would have other texts or another structure with this translation, so the text stays as it is"
CODE_FLAGS = frozenset(("xmltags", "printf", "variables"))
"""Flags of a translation that has other codes than its source; such a translation is not written."""
MIN_LETTERS = 6
"""Fewest letters beside codes whose loss is flagged."""
MIN_LETTERS_KEPT = 1 / 3
"""Smallest usual share of letters beside codes. Of 17,144 pairs of programs' texts with codes, 16 are below it."""
_FAILED_STATUSES = ("truncated", "repetition", "too_long", "empty", "target_language", "other_script")


@dataclass(frozen=True)
class DocumentOptions:
    """Options for the translation of a document.

    Attributes:
        source_language, target_language: codes of the languages
        scope: units to translate
        accept: write translations without a flag as good ones, where the format has states; else a human has to check them
        memory: translation memory, whose matches are taken first; a match of a similar text is never written as good
        limits: limits of usual outputs of the model
        subtitles: limits of subtitles
        glossary, strict_terms, annotate_terms, mask_codes, language_check: as in `TextOptions`
        any_language: also translate a document that states another language than that of the source
        keys: values to take or to leave, in formats with keys
    """

    source_language: str = ""
    target_language: str = ""
    scope: Scope = "empty"
    accept: bool = False
    memory: TranslationMemory = field(default_factory=lambda: TranslationMemory({}))
    limits: ModelLimits = field(default_factory=ModelLimits)
    subtitles: SubtitleLimits = field(default_factory=SubtitleLimits)
    glossary: Glossary | None = None
    strict_terms: bool = False
    annotate_terms: bool = False
    mask_codes: bool = False
    any_language: bool = False
    keys: KeyGlobs = ALL_KEYS
    language_check: bool = False


@dataclass(frozen=True, slots=True)
class UnitResult:
    """Translation of a unit.

    Attributes:
        text: translation; empty if there is none
        origin: origin of the translation
        flags: names of the checks that it fails, or the reasons why there is none
        match: entry of the translation memory that the text comes from
        note: sentence about the reason why there is no translation; empty if there is one
    """

    unit: Unit
    text: str
    origin: Origin
    flags: tuple[str, ...]
    match: MemoryMatch | None = None
    note: str = ""


@dataclass(frozen=True)
class TermCount:
    """Term of a glossary in a document. num_texts: texts that have it. num_used: those of them whose translation has a form"""

    entry: GlossaryEntry
    num_texts: int
    num_used: int


@dataclass(frozen=True)
class DocumentTranslation:
    """Translated document. content: the new bytes. results: one for each unit that was to be translated, in order"""

    content: bytes
    results: Sequence[UnitResult]


def translate_document(
    document: Document,
    parse: Callable[[bytes], Document],
    translate: TranslateLines,
    options: DocumentOptions,
    on_progress: Callable[[int], None] = lambda _: None,
    earlier: Mapping[str, str] = {},
) -> DocumentTranslation:
    """Translate the units of a document, equal texts once, and write them, with all plural forms of the target language.

    A translation without the tags of its source, and one that the format cannot write, is left out and flagged.

    parse: function that reads the format, for a check of what was written
    translate: function that translates the lines of a request in order
    earlier: texts that an output has already, by the ids of units. They are written again, and flagged if they fail a check.
        The scope "fuzzy" translates those that are equal to their source, and "all" translates all.
    on_progress: called with the number of units that are finished

    Raises DataError for a document of other languages, and for one that cannot be written.
    """
    check_languages(document, options)
    document = add_common_rules(add_plural_forms(document, parse, options.target_language))
    selected = list_selected(document, options.scope, options.keys, options.source_language, options.target_language)
    checked = {unit.id for unit in selected}
    redone = {unit.id for unit in selected if is_redone(unit, earlier, options.scope)}
    selected = _name_numbers([unit for unit in selected if unit.id in redone], document.units, options.target_language)
    results: dict[str, UnitResult] = {}
    for unit in selected:
        if (match := _look_up(unit, options.memory)) is not None:
            result = _check_result(unit, match.text, match, (), options)
            if result.text or unit.max_length is not None:
                results[unit.id] = result
        elif document.is_bilingual and not unit_has_language(unit):
            results[unit.id] = _check_result(unit, unit.source, None, (), options)
    on_progress(len(results))
    rest = [unit for unit in selected if unit.id not in results]
    for unit, text, failures in _translate_without_accelerators(document, rest, translate, options, on_progress):
        results[unit.id] = _check_result(unit, text, None, failures, options)
    all_units = list_all_units(document)
    for unit in all_units:
        if unit.id in earlier and unit.id not in redone and (text := earlier[unit.id]) != unit.source:
            flags = check_unit(unit, text, options) if unit.id in checked else ()  # values for programs differ
            results[unit.id] = UnitResult(unit, text, "file", flags)
    ordered = [results.pop(unit.id) for unit in all_units if unit.id in results]
    del selected, rest, results
    return _write(document, parse, ordered, options)


def _name_numbers(selected: Sequence[Unit], units: Sequence[Unit], language: str) -> list[Unit]:
    """Return units in which a form for 1, 21 and others, such as `One file`, has the source of the plural, with its number."""
    if (number := get_number_like_one(language)) is None:
        return list(selected)
    plurals = {unit.context.rpartition("other")[0]: unit.source for unit in units if unit.plural_form == "other"}
    named: list[Unit] = []
    for unit in selected:
        plural = plurals.get(unit.context.rpartition("one")[0], "") if unit.plural_form == "one" else ""
        if has_branches(unit.source) and (message := read_message(unit.source, has_tags=unit.markup != "none")) is not None:
            message = message.put_number_in_one()
            named.append(replace(unit, source=message.write(message.sentences)))
        elif lacks_number(unit.source, plural):
            named.append(replace(unit, source=plural, plural_form=f"={number}"))
        else:
            named.append(unit)
    return named


def is_redone(unit: Unit, earlier: Mapping[str, str], scope: Scope) -> bool:
    """Return whether a unit that a scope selects is translated, although an output may have a text for it already."""
    return unit.id not in earlier or scope == "all" or (scope == "fuzzy" and earlier[unit.id] == unit.source)


def check_document(document: Document, options: DocumentOptions, original: Document | None = None) -> list[UnitResult]:
    """Return the translations that a document has, with the checks that they fail.

    original: file that a document of one language is a translation of; without it, of such a document only the length and the
        time of subtitles are checked
    options: options, of which the target language counts only if the document states none
    """
    options = replace(options, target_language=document.target_language or options.target_language)
    results: list[UnitResult] = []
    if original is not None:
        pairs = [(unit, other.lines or other.source) for unit, other in pair_units(add_common_rules(original), document)]
        return [
            UnitResult(unit, text, "file", check_unit(unit, text, options))
            for unit, text in pairs
            if unit_has_language(unit) and options.keys.selects(unit)
        ]
    for unit in add_common_rules(document).units:
        if unit.target:
            results.append(UnitResult(unit, unit.target, "file", check_unit(unit, unit.target, options)))
        elif unit.seconds is not None:
            flags = options.subtitles.check(_get_plain_text(_parse(unit, unit.lines)), unit.seconds)
            results.append(UnitResult(unit, unit.lines, "file", tuple(flags)))
    return results


def check_unit(unit: Unit, translation: str, options: DocumentOptions) -> tuple[str, ...]:
    """Return the names of the checks that a translation of a unit fails, in pofilter's words where it has them."""
    check_goes_on()
    flags = _check_text(unit, translation, options)
    has_breaks = "\n" in unit.source or "\n" in translation
    if has_breaks and _count_edge_breaks(unit.source) != _count_edge_breaks(translation):
        flags.append("newlines")
    if unit.max_length is not None or unit.seconds is not None:
        lines = translation if unit.seconds is None else translation.replace("<br/>", "\n")
        plain = _get_plain_text(_parse(unit, lines))
        if unit.max_length is not None and len(plain) > unit.max_length:
            flags.append("max_length")
        if unit.seconds is not None:
            flags += options.subtitles.check(plain, unit.seconds)
    return tuple(dict.fromkeys(flags))


def _check_text(unit: Unit, translation: str, options: DocumentOptions) -> list[str]:
    """Return the failed checks of a text, or of all sentences of a message with branches."""
    if has_branches(unit.source):
        source_message, message = (read_message(text, has_tags=unit.markup != "none") for text in (unit.source, translation))
        pairs = None if source_message is None or message is None else pair_sentences(source_message, message)
        if pairs is None:
            return ["variables"]
        parts = [(replace(unit, source=source), text) for source, text in pairs]
        return [flag for part, text in parts for flag in _check_text(part, text, options)]
    sides = unit.source, translation
    has_markup = unit.markup != "none" and not unit.rules.kept
    code_flags: Sequence[str] = ()
    if has_markup and (texts := list_equal_tags(*sides)):
        has_codes = len(texts[0]) > 1
        words = ["".join(side) for side in texts]
        plain_source, plain_text = words
    else:
        coded = [read_inline(text, unit.markup, unit.rules, language=options.source_language) for text in sides]
        has_codes = coded[0].has_codes
        plain_source, plain_text = map(_get_plain_text, coded)
        words = ["".join(list_texts(side.parts)) for side in coded]
        code_flags = compare_codes(*coded).flags
    flags: list[str] = list(check_translation(plain_source, plain_text, options.target_language, options.limits.length_ratios))
    if options.glossary is not None and any(use.form is None for use in options.glossary.check(plain_source, plain_text)):
        flags.append("terminology")
    if has_codes and is_spaced_language(options.target_language) and _loses_words(*words):
        flags.append("length")
    return [*flags, *code_flags]


def _loses_words(before: str, after: str) -> bool:
    """Return whether a text beside codes lost most of its letters, as `in %d seconds` that became `in %d`."""
    num_before, num_after = count_letters(before), count_letters(after)
    return num_before >= MIN_LETTERS and num_after < MIN_LETTERS_KEPT * num_before


def check_terms(result: UnitResult, glossary: Glossary) -> Sequence[TermUse]:
    """Return the use of each term of the glossary that the source has."""
    return glossary.check(*(_get_plain_text(_parse(result.unit, text)) for text in (result.unit.source, result.text)))


def count_terms(results: Sequence[UnitResult], glossary: Glossary) -> list[TermCount]:
    """Return the use of each term that a text with a translation has, in the order of the glossary."""
    uses: dict[GlossaryEntry, list[bool]] = {}
    for result in results:
        for use in check_terms(result, glossary) if result.text else ():
            uses.setdefault(use.entry, []).append(use.form is not None)
    return [TermCount(entry, len(uses[entry]), sum(uses[entry])) for entry in glossary.entries if entry in uses]


def _get_plain_text(text: CodedText) -> str:
    """Return a text with its placeholders, without tags; with a space for a tag that stands for one."""
    return "".join(
        part if isinstance(part, str) else part.markup if part.text else " " * part.is_space for part in list_leaves(text.parts)
    )


def _parse(unit: Unit, text: str) -> CodedText:
    """Return a text of a unit with its codes, without those inside words."""
    return mark_word_codes(read_inline(text, unit.markup, unit.rules))


def _count_edge_breaks(text: str) -> tuple[int, int]:
    return len(text) - len(text.lstrip("\n")), len(text) - len(text.rstrip("\n"))


def check_languages(document: Document, options: DocumentOptions) -> None:
    """Raise DataError if a document states other languages than those of the translation.

    A PO file without a translation may also state the language of its sources, as templates do.
    """
    is_template = document.format == "po" and not any(unit.target for unit in document.units)
    if is_template and is_same_language(document.target_language, options.source_language):
        return
    if document.target_language:
        pairs = ((document.source_language, options.source_language), (document.target_language, options.target_language))
        for stated, language in pairs:
            if stated and language and not is_same_language(stated, language):
                raise DataError(
                    f"the file states the language {stated[:20]!r}, and the translation is from "
                    f"{options.source_language!r} to {options.target_language!r}; choose another bundle, or correct the file",
                    code="unsupported-language",
                )
    elif is_foreign(document.source_language, options.source_language) and not options.any_language:
        raise DataError(
            f"the file states the language {document.source_language[:20]!r}, and the translation is from "
            f"{options.source_language!r}; correct the file, or translate it all the same with --any-language",
            code="unsupported-language",
        )


def _look_up(unit: Unit, memory: TranslationMemory) -> MemoryMatch | None:
    """Return the match of a unit in a translation memory, which has texts without markup."""
    if not memory:
        return None
    if unit.markup == "none":
        return memory.find(unit.source)
    coded = _parse(unit, unit.source)
    has_tags = any(isinstance(part, Point) and part.markup.startswith("<") for part in coded.parts)
    if has_tags or not all(isinstance(part, str | Point) for part in coded.parts):
        return None
    match = memory.find(html.unescape(unit.source))
    return None if match is None else replace(match, text=html.escape(match.text, quote=False))


class _Cache:
    """Function that translates each line once, unless more than `MAX_CACHED_BYTES` of results came in between."""

    def __init__(self, translate: TranslateLines) -> None:
        self._translate = translate
        self._results: dict[tuple[object, ...], Translation] = {}
        self._num_bytes = 0

    def __call__(self, request: LineRequest) -> Sequence[Translation]:
        all_terms = request.terms or [()] * len(request.lines)
        kind = request.attention, request.is_retry, request.keep_marks
        keys = [(line, terms, *kind) for line, terms in zip(request.lines, all_terms, strict=True)]
        if missing := dict.fromkeys(key for key in keys if key not in self._results):
            terms = tuple(key[1] for key in missing) if request.terms else ()
            missing_request = replace(request, lines=tuple(key[0] for key in missing), terms=terms)
            for key, result in zip(missing, self._translate(missing_request), strict=True):
                self._results[key] = result
                self._num_bytes += _estimate_bytes(result)
        results = [self._results[key] for key in keys]
        while self._num_bytes > MAX_CACHED_BYTES:
            self._num_bytes -= _estimate_bytes(self._results.pop(next(iter(self._results))))
        return results


def _estimate_bytes(translation: Translation) -> int:
    """Return the bytes of a translation in memory, roughly: nearly all are those of the tokens and the attention."""
    num_cells = 0 if translation.attention is None else translation.attention.size
    alternatives = sum(map(_estimate_bytes, translation.alternatives))
    return 1000 + 100 * (len(translation.tokens) + len(translation.source_tokens)) + 8 * num_cells + alternatives


UnitText = tuple[Unit, str, tuple[str, ...]]
"""Unit, its translation, and flags of the model."""


def _translate_without_accelerators(
    document: Document,
    units: Sequence[Unit],
    translate: TranslateLines,
    options: DocumentOptions,
    on_progress: Callable[[int], None],
) -> Iterator[UnitText]:
    """Yield the translation of each unit, with the accelerator of its source."""
    accelerators = {
        unit.id: (unit, accelerator)
        for unit in units
        if unit.markup == "none" and (accelerator := find_accelerator(unit.source, unit.rules)) is not None
    }
    read_units = [replace(unit, source=accelerators[unit.id][1].text) if unit.id in accelerators else unit for unit in units]
    is_spaced = is_spaced_language(options.target_language)
    for unit, text, failures in _translate_units(document, read_units, translate, options, on_progress):
        if unit.id in accelerators:
            original, accelerator = accelerators[unit.id]
            yield original, accelerator.insert(text, is_spaced=is_spaced), failures
        else:
            yield unit, text, failures


def _translate_units(
    document: Document,
    units: Sequence[Unit],
    translate: TranslateLines,
    options: DocumentOptions,
    on_progress: Callable[[int], None],
) -> Iterator[UnitText]:
    """Yield the translation of each unit. Units that share sentences are translated together, each line once."""
    translate = _Cache(translate)
    waiting = {unit.id: unit for unit in units}
    messages = [waiting.pop(unit.id) for unit in units if is_message(unit)]
    yield from _translate_messages(messages, translate, options, on_progress)
    groups_by_options: dict[TextOptions, list[list[Unit]]] = {}
    for names in document.sentence_groups:
        if all(name in waiting for name in names):
            group = [waiting.pop(name) for name in names]
            groups_by_options.setdefault(_get_text_options(group[0], options, attention=True), []).append(group)
    for text_options, groups in groups_by_options.items():
        for window in _iter_windows(groups, lambda group: sum(len(unit.source) for unit in group)):
            sources = [_join_sources(group, options) for group in window]
            results = translate_texts(sources, text_options, translate)
            for group, source, result in zip(window, sources, results, strict=True):
                yield from _divide_result(group, source, result, translate, options)
            on_progress(sum(map(len, window)))
    for unit, text, failures in _translate_with_numbers(list(waiting.values()), translate, options):
        del waiting[unit.id]
        yield unit, text, failures
        on_progress(1)
    by_kind: dict[tuple[Markup, bool, InlineRules], dict[str, list[Unit]]] = {}
    for unit in waiting.values():
        kind = unit.markup, unit.keep_line_breaks, unit.rules
        by_kind.setdefault(kind, {}).setdefault(unit.source, []).append(unit)
    for units_by_text in by_kind.values():
        text_options = _get_text_options(next(iter(units_by_text.values()))[0], options)
        for texts in _iter_windows(units_by_text, len):
            results = translate_texts(texts, text_options, translate)
            for text, result in zip(texts, results, strict=True):
                failures = _list_failures(result)
                yield from ((unit, result.text, failures) for unit in units_by_text[text])
            on_progress(sum(len(units_by_text[text]) for text in texts))


def _iter_windows(items: Iterable[_T], count_characters: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield the items in order, as many at a time as `WINDOW` and `WINDOW_CHARACTERS` allow, and one at least."""
    window: list[_T] = []
    num_characters = 0
    for item in items:
        count = count_characters(item)
        if window and (len(window) == WINDOW or num_characters + count > WINDOW_CHARACTERS):
            yield window
            window, num_characters = [], 0
        window.append(item)
        num_characters += count
    if window:
        yield window


def _translate_with_numbers(units: Sequence[Unit], translate: TranslateLines, options: DocumentOptions) -> Iterator[UnitText]:
    """Yield the translation of each plural form that a number in the place of its placeholder translates."""
    numbered = [
        (unit, text)
        for unit in units
        if unit.plural_form and (text := insert_number(unit.source, unit.plural_form, options.target_language)) is not None
    ]
    for window in _iter_windows(numbered, lambda item: len(item[1].text)):
        results = translate_texts([text.text for _, text in window], _get_text_options(window[0][0], options), translate)
        for (unit, text), result in zip(window, results, strict=True):
            restored = text.restore(result.text)
            if restored is not None and not (failures := _list_failures(result)):
                yield unit, restored, failures


def _translate_messages(
    units: Sequence[Unit], translate: TranslateLines, options: DocumentOptions, on_progress: Callable[[int], None]
) -> Iterator[UnitText]:
    """Yield the translation of each message, sentence by sentence; an empty one for a message that cannot be written."""
    for window in _iter_windows(units, lambda unit: len(unit.source)):
        messages = [_read_message(unit, options) for unit in window]
        sentences = [
            Unit("", sentence, unit.markup, plural_form=form, rules=unit.rules)
            for unit, message in zip(window, messages, strict=True)
            if message is not None
            for sentence, form in zip(message.sentences, message.plural_forms, strict=True)
        ]
        results = iter(_translate_sentences(sentences, translate, options))
        for unit, message in zip(window, messages, strict=True):
            if message is None:
                yield unit, "", ("variables",)
                continue
            own_results = list(islice(results, len(message.sentences)))
            failures = [failure for _, own_failures in own_results for failure in own_failures]
            yield unit, message.write([text for text, _ in own_results]), tuple(dict.fromkeys(failures))
        on_progress(len(window))


def _read_message(unit: Unit, options: DocumentOptions) -> IcuMessage | None:
    """Return a message with branches, also for the plural forms that the target language has and it lacks."""
    message = read_message(unit.source, has_tags=unit.markup != "none")
    return None if message is None else message.add_plural_forms(options.target_language)


def _translate_sentences(
    sentences: Sequence[Unit], translate: TranslateLines, options: DocumentOptions
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the translation of each sentence of a message and flags of the model."""
    named = [replace(sentence, id=str(number)) for number, sentence in enumerate(sentences)]
    results = {unit.id: (text, failures) for unit, text, failures in _translate_with_numbers(named, translate, options)}
    by_options: dict[TextOptions, list[Unit]] = {}
    for unit in named:
        if unit.id not in results:
            by_options.setdefault(_get_text_options(unit, options), []).append(unit)
    for text_options, rest in by_options.items():
        texts = [remove_ordinal_ends(unit.source) if unit.plural_form else unit.source for unit in rest]
        translations = translate_texts(texts, text_options, translate)
        for unit, result in zip(rest, translations, strict=True):
            results[unit.id] = result.text, _list_failures(result)
    yield from (results[unit.id] for unit in named)


def _get_text_options(unit: Unit, options: DocumentOptions, *, attention: bool = False) -> TextOptions:
    return TextOptions(
        unit.markup,
        options.source_language,
        options.target_language,
        keep_line_breaks=unit.keep_line_breaks,
        attention=attention,
        limits=options.limits,
        glossary=options.glossary,
        strict_terms=options.strict_terms,
        annotate_terms=options.annotate_terms,
        mask_codes=options.mask_codes,
        rules=unit.rules,
        language_check=options.language_check,
    )


def _join_sources(group: Sequence[Unit], options: DocumentOptions) -> str:
    return (" " if is_spaced_language(options.source_language) else "").join(unit.source for unit in group)


def _divide_result(
    group: Sequence[Unit], source: str, result: TextTranslation, translate: TranslateLines, options: DocumentOptions
) -> Iterator[UnitText]:
    """Yield the part of each unit. If there are fewer words than units, each unit is translated by itself."""
    if len(group) == 1:
        yield group[0], result.text, _list_failures(result)
        return
    space = len(source) - sum(len(unit.source) for unit in group) > 0
    starts = list(accumulate(len(unit.source) + space for unit in group[:-1]))
    goals = _find_goals(source, result, starts) or [len(result.text) * start / len(source) for start in starts]
    parts = split_for_cues(result.text, goals, is_spaced=is_spaced_language(options.target_language))
    if all(parts):
        yield from ((unit, part, _list_failures(result)) for unit, part in zip(group, parts, strict=True))
        return
    for unit in group:
        (alone,) = translate_texts([unit.source], _get_text_options(unit, options), translate)
        yield unit, alone.text, _list_failures(alone)


def _list_failures(result: TextTranslation) -> tuple[str, ...]:
    """Return the statuses, low scores and lost codes of the segments; a text as a whole has its other checks later."""
    statuses = [status for segment in result.segments if (status := segment.status) in _FAILED_STATUSES]
    checks = [check for segment in result.segments for check in segment.checks if check == "low_score" or check in CODE_FLAGS]
    return tuple(dict.fromkeys([*statuses, *checks]))


def _find_goals(source: str, result: TextTranslation, starts: Sequence[int]) -> list[float]:
    """Return the characters of the translation that belong to characters of the source, or none without attention.

    Each place is that with the least attention from one side of it to the other side of the place in the source.
    """
    if len(result.segments) != 1 or (translation := result.segments[0].translation) is None or translation.attention is None:
        return []
    if result.segments[0].source != source or translation.text != result.text:
        return []
    weights = compute_unit_weights(translation, source).tolist()
    source_units, target_units = split_units(source), split_units(result.text)
    goals: list[float] = []
    for start in starts:
        number = sum(first < start for first, _ in source_units)
        before, after = [sum(row[:number]) for row in weights], [sum(row[number:]) for row in weights]
        costs = [sum(after[:cut]) + sum(before[cut:]) for cut in range(len(target_units) + 1)]
        best = costs.index(min(costs))
        goals.append(float(target_units[best][0] if best < len(target_units) else len(result.text)))
    return goals


def _check_result(
    unit: Unit, text: str, match: MemoryMatch | None, failures: tuple[str, ...], options: DocumentOptions
) -> UnitResult:
    """Return the result of a unit. A text without the codes of its source that the format needs is left out."""
    if unit.seconds is not None and not unit.keep_line_breaks:
        text = break_lines(text, options.subtitles.line_length)
    flags = tuple(dict.fromkeys((*failures, *check_unit(unit, text, options))))
    note = ""
    if CODE_FLAGS.intersection(flags):
        note = _describe_codes(unit, text)
    elif "too_long" in flags:
        note = "the model cannot read a text of this length"
    elif not text.strip():
        note = "the model gave no translation"
    if note:
        return UnitResult(unit, "", "file", flags, note=f"{note}, so the text stays as it is")
    return UnitResult(unit, text, "model" if match is None else "memory", flags, match)


def _describe_codes(unit: Unit, text: str) -> str:
    """Return a sentence about the codes of a text that is no good translation."""
    if has_branches(unit.source):
        return "the branches or arguments of the message cannot be kept"
    difference = compare_codes(*(read_inline(side, unit.markup, unit.rules) for side in (unit.source, text)))
    return difference.describe() or "no translation keeps all placeholders and tags"


def _write(
    document: Document, parse: Callable[[bytes], Document], results: Sequence[UnitResult], options: DocumentOptions
) -> DocumentTranslation:
    """Write the results that have a text. Units that would not be read again as written are left out and flagged."""
    translations = {
        result.unit.id: UnitTranslation(
            result.text,
            get_state(result, options),
            result.flags,
            None if result.match is None or result.match.is_exact else result.match,
            options.source_language,
            options.target_language,
            describe_flags(result.unit, result.text, result.flags),
        )
        for result in results
        if result.text
    }
    writer = _DocumentWriter(document, parse, options.target_language)
    content = writer.write(translations)
    kept = [
        replace(result, text="", origin="file", flags=(*result.flags, "unwritable"), match=None, note=UNWRITABLE_NOTE)
        if result.unit.id in translations and result.unit.id not in writer.written
        else result
        for result in results
    ]
    return DocumentTranslation(content, kept)


class _DocumentWriter:
    """Writer of translations, each of which is left out if the document could not be read again with it.

    written: ids of the units whose translation was written
    """

    def __init__(self, document: Document, parse: Callable[[bytes], Document], language: str) -> None:
        self._document, self._parse, self._language = document, parse, language
        self._num_attempts = 0
        self._content = document.content  # with the translations that were checked last
        self._checked: set[str] = set()
        self.written: set[str] = set()

    def write(self, translations: Mapping[str, UnitTranslation]) -> bytes:
        """Return the bytes with these translations, without those that cannot be written."""
        rest = dict(translations)
        for _ in range(MAX_ROUNDS):
            names = self._check(rest)
            if not names & rest.keys():
                break
            rest = {name: translation for name, translation in rest.items() if name not in names}
        if names:
            rest = self._select_writable(list(rest), rest)
        self.written = set(rest)
        if rest.keys() == self._checked:
            return self._content
        return write_document(self._document, rest, self._language)

    def _select_writable(self, names: Sequence[str], rest: Mapping[str, UnitTranslation]) -> dict[str, UnitTranslation]:
        """Return the translations that can be written. The document does not name those that cannot, so halves are tried."""
        selected: dict[str, UnitTranslation] = {}
        waiting = [names]
        while waiting and self._num_attempts < MAX_ATTEMPTS:
            part = waiting.pop()
            trial = {**selected, **{name: rest[name] for name in part}}
            if not self._check(trial):
                selected = trial
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
        return selected

    def _check(self, translations: Mapping[str, UnitTranslation]) -> set[str]:
        """Return the ids of units that would not be read again as written; an unknown id if no unit can be named."""
        self._num_attempts += 1
        try:
            self._content = write_document(self._document, translations, self._language)
            self._checked = set(translations)
            check_written(self._document, translations, self._content, self._parse)
        except UnwritableUnitsError as error:
            return set(error.unit_ids) or {""}
        except DataError as error:
            if error.code not in ("invalid-data", "invalid-encoding"):
                raise
            return {""}
        return set()


def get_state(result: UnitResult, options: DocumentOptions) -> Literal["translated", "fuzzy"]:
    """Return the state with which a result is written."""
    if result.origin == "file":
        return "translated"
    is_good = options.accept if result.match is None else result.match.is_exact
    return "translated" if is_good and not result.flags else "fuzzy"
