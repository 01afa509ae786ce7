"""Translation of whole texts: line breaks, spaces, markup and placeholders stay, and sentences are translated one by one.

`divide` cuts a text into segments and what stands between them. `translate_texts` translates the segments of many texts
together and puts them back. What the model reads of a segment is a `Reading`:

1. For a model that was trained with marks, placeholders and tags without content are marks, and the search keeps each.
2. Otherwise placeholders are part of the text.
3. If a translation loses a placeholder, the model reads the text without codes, and attention places them all.
4. If the translation then has other codes than its source, the model reads the pieces between the codes one by one.
5. If that fails, too, the segment stays in its language, and has the names of the failed checks.

Attention places pairs of tags in all readings. `compare_codes` checks each translation as it is written.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby, pairwise, product
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, cast

from dragoman.inference.readings import Reading, place_codes, read_marks, read_placeholders, read_without_codes
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translation_result import STATUSES_WORST_FIRST, Translation
from dragoman.languages import get_language, is_spaced_language
from dragoman.tasks.translation import TranslationStatus
from dragoman.text.breaks import find_boundaries
from dragoman.text.code_check import NO_DIFFERENCE, CodeDifference, compare_codes
from dragoman.text.glossary import Glossary, TermUse, list_phrases
from dragoman.text.guards import Check, check_translation
from dragoman.text.inline_codes import (
    BLOCK_TAGS,
    INLINE_TAGS,
    CodedText,
    Element,
    Markup,
    Part,
    Point,
    list_equal_tags,
    read_inline,
    write_parts,
)
from dragoman.text.inline_rules import COMMON_RULES, InlineRules
from dragoman.text.kept_terms import mark_kept_terms
from dragoman.text.length_ratios import LengthRatios
from dragoman.text.other_scripts import find_other_scripts, is_in_other_script, mark_other_scripts
from dragoman.text.placeholders import may_have_codes
from dragoman.text.sentences import cut_long_spans, split_sentences
from dragoman.text.target_language import find_target_language
from dragoman.text.term_annotation import annotate_terms, has_marks
from dragoman.text.word_codes import mark_word_codes

if TYPE_CHECKING:
    from dragoman.bundle import BundleMetadata

PlaceholderMethod = Literal["auto", "mask", "projection"]
"""Way to keep placeholders and tags without content: by a mask on the search or by attention; auto prefers the mask."""

KeptStatus = Literal["other_script", "target_language"]
"""Status of a segment that stays as it is: it is in a script of neither language, or in the target language already."""
SegmentStatus = TranslationStatus | KeptStatus
_SEGMENT_STATUSES_WORST_FIRST: tuple[SegmentStatus, ...] = (*STATUSES_WORST_FIRST[:-1], "other_script", "target_language", "ok")

MAX_SENTENCE_CHARACTERS = 2000
"""Longest sentence that is translated as one. To place its codes takes time and memory that grow with its square."""
MAX_TERM_COST = 0.5
"""Fall of the mean log-probability of the tokens, in nats, up to which a translation with a required term is taken."""

_SPACES = re.compile(r"[ \t-\r\x1c-\x1e\x85\u2028\u2029]+")
_SPACE_RUN = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]|  ")
_BREAK_TAG = re.compile(r"<(?:br\d*(?:\s[^<>]*)?/?|tab\d+/)>", re.IGNORECASE)
_TAG_NAME = re.compile(r"(?:<|&lt;)/?([A-Za-z][^\s<>/&]*)")


@dataclass(frozen=True)
class OutputLimits:
    """Limits of usual outputs of a model, which its bundle has; a limit that it does not have is None.

    length_ratios: usual lengths of translations for the pair of languages
    low_score: mean log-probability of the tokens, in nats, below which a translation has a low score
    """

    length_ratios: LengthRatios | None = None
    low_score: float | None = None

    @classmethod
    def read(cls, metadata: BundleMetadata, source_language: str, target_language: str) -> OutputLimits:
        """Return the limits of a bundle for a pair of languages."""
        languages = get_language(source_language), get_language(target_language)
        ratios = [
            item
            for item in metadata.length_ratios or ()
            if (get_language(item.source_language), get_language(item.target_language)) == languages
        ]
        calibration = metadata.confidence
        return cls(ratios[0] if ratios else None, None if calibration is None else calibration.low_score)

    def has_low_score(self, translation: Translation) -> bool:
        """Return whether the model was less sure of a translation than of nearly all in its calibration set."""
        log_probs = translation.token_log_probs
        return self.low_score is not None and bool(log_probs) and sum(log_probs) / len(log_probs) < self.low_score


@dataclass(frozen=True)
class TextOptions:
    """Options for reading texts.

    markup: "none" for plain text, whose codes are kept, too; in "html" and "xml", character references are characters
    source_language, target_language: codes that select the rules for sentences and for the spaces between them
    split_sentences: translate each sentence by itself; if false, each line or block
    keep_line_breaks: a line break ends a sentence; without markup only
    opaque_tags: elements that are kept with their content
    retry: translate a segment that fails a check once more, with other settings
    attention: request attention for every segment, also for those without codes
    limits: limits of usual outputs of the model
    mask_codes: the model reads codes without content as marks, and the search keeps each exactly once
    glossary: terms that translations have to use. A segment that lacks a term is translated again, with its terms required,
        and that translation is taken if it costs at most `MAX_TERM_COST`.
    strict_terms: take it at any cost
    annotate_terms: the model was trained to read the translation of a term behind it, see `term_annotation`
    rules: rules for the codes of the texts
    splitting_tags, non_splitting_tags: names of elements that always, or never, divide a text with markup
    detects_outline: elements of XML that stand side by side without text between them are texts of their own
    language_check: keep a segment that is in the target language already, see `target_language`, and what is in the script of
        neither language, see `other_scripts`
    """

    markup: Markup = "none"
    source_language: str = ""
    target_language: str = ""
    split_sentences: bool = True
    keep_line_breaks: bool = True
    opaque_tags: frozenset[str] = frozenset()
    retry: bool = True
    attention: bool = False
    limits: OutputLimits = OutputLimits()
    mask_codes: bool = False
    glossary: Glossary | None = None
    strict_terms: bool = False
    annotate_terms: bool = False
    rules: InlineRules = COMMON_RULES
    splitting_tags: frozenset[str] = frozenset()
    non_splitting_tags: frozenset[str] = frozenset()
    detects_outline: bool = False
    language_check: bool = False

    @property
    def other_scripts(self) -> frozenset[str]:
        """Scripts whose words stay as they are."""
        return find_other_scripts(self.source_language, self.target_language) if self.language_check else frozenset()


@dataclass(frozen=True)
class TranslatedSegment:
    """Segment of a text, usually a sentence.

    source, text: the segment and its translation, with their markup
    translation: translation of the text without markup, or None for a segment that the model did not read
    checks: checks that the translation fails, see `check_translation`, and "low_score" if the bundle is calibrated
    alternatives: other translations, best first, if the search returns several
    terms: use of the terms of the glossary; without one of them, the translation fails the check "terminology"
    kept: why the model did not read the segment, or None
    """

    source: str
    text: str
    translation: Translation | None = None
    checks: tuple[Check, ...] = ()
    alternatives: tuple[str, ...] = ()
    terms: tuple[TermUse, ...] = ()
    kept: KeptStatus | None = None

    @property
    def status(self) -> SegmentStatus:
        """Status of the translation; "ok" for a segment without a letter or digit."""
        if self.kept is not None:
            return self.kept
        return "ok" if self.translation is None else self.translation.status


@dataclass(frozen=True)
class TextTranslation:
    """Translation of a text.

    text: the translation, with everything that stands between the segments
    segments: translated segments in order
    alternatives: other translations; each has another translation of the segments that have one
    """

    text: str
    segments: tuple[TranslatedSegment, ...]
    alternatives: tuple[str, ...] = ()

    @property
    def status(self) -> SegmentStatus:
        """Worst status of the segments; "ok" for a text without segments."""
        return min((segment.status for segment in self.segments), key=_SEGMENT_STATUSES_WORST_FIRST.index, default="ok")


@dataclass(frozen=True)
class Separator:
    """White space between two sentences of a line."""

    text: str

    def write(self) -> str:
        """Return the white space."""
        return self.text


Piece = str | Separator | CodedText
"""Something that is kept verbatim, white space between two sentences, or a segment."""


PhraseGroups = tuple[tuple[str, ...], ...]
"""Groups of phrases; a translation contains one phrase of each group."""


@dataclass(frozen=True)
class LineRequest:
    """Lines to translate next.

    attention: the translations need attention
    is_retry: the lines were translated before, with a result that fails a check; the translations need alternatives
    keep_marks: the lines hold marks of placeholders, which each translation keeps, or of terms, as
        `TranslationConstraints.keep_marks` says
    terms: for each line, groups of phrases of which its translation has to contain one each; empty if no line has any
    """

    lines: tuple[str, ...]
    attention: bool
    is_retry: bool = False
    keep_marks: bool = False
    terms: tuple[PhraseGroups, ...] = ()

    def split(self) -> list[LineRequest]:
        """Return a request for each line."""
        return [
            LineRequest((line,), self.attention, self.is_retry, self.keep_marks, self.terms[index : index + 1])
            for index, line in enumerate(self.lines)
        ]

    def build_constraints(self) -> list[TranslationConstraints | None] | None:
        """Return the constraints of each line, by its marks and terms; None if no line has any."""
        if not self.keep_marks and not self.terms:
            return None
        return [
            TranslationConstraints(terms=groups, skip_infeasible=True, keep_marks=self.keep_marks)
            if groups or self.keep_marks
            else None
            for groups in self.terms or [()] * len(self.lines)
        ]


TranslateLines = Callable[[LineRequest], Sequence[Translation]]
"""Function that translates the lines of a request, in order."""
TextPlan = Generator[LineRequest, Sequence[Translation], list[TextTranslation]]
"""Translation of texts that yields requests for lines and receives their translations, so that any caller can drive it."""


def translate_texts(texts: Sequence[str], options: TextOptions, translate: TranslateLines) -> list[TextTranslation]:
    """Translate texts and return one result for each, in order. Equal segments are translated once.

    translate: function that translates the lines of a request in order
    """
    plan = plan_texts(texts, options)
    try:
        request = next(plan)
        while True:
            request = plan.send(translate(request))
    except StopIteration as end:
        results: list[TextTranslation] = end.value
        return results


def plan_texts(texts: Sequence[str], options: TextOptions) -> TextPlan:
    """Yield the lines to translate, and return the translated texts; see `translate_texts`."""
    numbers: dict[CodedText, int] = {}  # of the segments
    pieces_of_texts = [
        [numbers.setdefault(piece, len(numbers)) if isinstance(piece, CodedText) else piece for piece in divide(text, options)]
        for text in texts
    ]
    translated = yield from _translate_segments(list(numbers), options)
    separator = " " if is_spaced_language(options.target_language) else ""
    return [_join(pieces, translated, separator) for pieces in pieces_of_texts]


def _join(pieces: Sequence[str | Separator | int], translated: Sequence[TranslatedSegment], separator: str) -> TextTranslation:
    """Return the text of the pieces and its alternatives. pieces: a segment is its number"""
    segments = tuple(translated[piece] for piece in pieces if isinstance(piece, int))

    def join(number: int) -> str:
        """Return the text with this alternative of each segment.

        A single space, or none, becomes what the language writes, but between two segments that stay.
        """
        output: list[str] = []
        before: TranslatedSegment | None = None
        space: str | None = None  # behind that segment
        for piece in pieces:
            if isinstance(piece, Separator):
                space = piece.text
                continue
            segment = translated[piece] if isinstance(piece, int) else None
            if space is None and before and segment:
                space = ""
            if space is not None:
                stays = before and before.kept and segment and segment.kept
                output.append(separator if space in ("", " ") and not stays else space)
            if segment:
                output.append(segment.alternatives[number] if 0 <= number < len(segment.alternatives) else segment.text)
            else:
                output.append(str(piece))
            before, space = segment, None
        if space is not None:
            output.append(separator if space == " " else space)
        return "".join(output)

    num_alternatives = max((len(segment.alternatives) for segment in segments), default=0)
    return TextTranslation(join(-1), segments, tuple(join(number) for number in range(num_alternatives)))


SegmentPlan = Generator[LineRequest, Sequence[Translation], list[TranslatedSegment]]


def _translate_segments(segments: Sequence[CodedText], options: TextOptions) -> SegmentPlan:
    """Translate segments with their placeholders, those that lose a code in other ways, and those with faults again.

    Before the last step, segments without a term of the glossary are translated with their terms required.
    """
    results = [TranslatedSegment(source, source) for source in (segment.write() for segment in segments)]
    texts = [segment.clean.text for segment in segments]
    segments = [mark_other_scripts(segment, options.other_scripts) for segment in segments]
    readings = [(options.mask_codes and read_marks(segment)) or read_placeholders(segment) for segment in segments]
    if options.language_check:
        reasons = _find_kept(texts, options)
        results = [replace(result, kept=reason) for result, reason in zip(results, reasons, strict=True)]
    waiting = [index for index, text in enumerate(texts) if _has_word(text) and results[index].kept is None]
    lost = yield from _translate_readings(segments, readings, results, waiting, options)
    for index in lost:
        readings[index] = read_without_codes(segments[index])
    lost = yield from _translate_readings(segments, readings, results, lost, options)
    yield from _translate_between_codes(segments, results, lost, options)
    if options.retry or options.strict_terms:
        lacking = [index for index in waiting if "terminology" in results[index].checks]
        yield from _translate_readings(segments, readings, results, lacking, options, accept=partial(_has_more_terms, options))
    if options.retry:
        faulty = [
            index for index in waiting if set(results[index].checks) - {"terminology"} or results[index].status == "repetition"
        ]
        yield from _translate_readings(segments, readings, results, faulty, options, accept=_is_faultless)
    return results


def _find_kept(texts: Sequence[str], options: TextOptions) -> list[KeptStatus | None]:
    is_in_target = find_target_language(texts, options.source_language, options.target_language)
    return [
        "target_language" if is_kept else "other_script" if is_in_other_script(text, options.other_scripts) else None
        for text, is_kept in zip(texts, is_in_target, strict=True)
    ]


def _is_faultless(present: TranslatedSegment, new: TranslatedSegment) -> bool:
    """Return whether a new translation passes all checks."""
    return not new.checks and new.status in ("ok", "short")


def _has_more_terms(options: TextOptions, present: TranslatedSegment, new: TranslatedSegment) -> bool:
    """Return whether a new translation has more terms than the present one, without another fault, at an allowed cost."""
    num_lacking, num_still_lacking = (sum(use.form is None for use in segment.terms) for segment in (present, new))
    cost = _compute_mean_log_prob(present) - _compute_mean_log_prob(new)
    return (
        num_still_lacking < num_lacking
        and set(new.checks) - {"low_score"} <= set(present.checks)
        and new.status in ("ok", "short")
        and (options.strict_terms or cost <= MAX_TERM_COST)
    )


def _compute_mean_log_prob(segment: TranslatedSegment) -> float:
    log_probs = segment.translation.token_log_probs if segment.translation else ()
    return sum(log_probs) / max(len(log_probs), 1)


def _translate_readings(
    segments: Sequence[CodedText],
    readings: Sequence[Reading],
    results: list[TranslatedSegment],
    indices: Sequence[int],
    options: TextOptions,
    *,
    accept: Callable[[TranslatedSegment, TranslatedSegment], bool] | None = None,
) -> Generator[LineRequest, Sequence[Translation], list[int]]:
    """Translate the readings with these indices, store the results, and return the indices of those that lost a placeholder.

    accept: for a retry, function of the present result and a new one; the first new one for which it is true is stored
    """
    lost = []
    lines_by_index = {index: _annotate_terms(readings[index], options) for index in indices}
    kinds = {
        index: (readings[index].text.has_codes, bool(readings[index].marked) or line != readings[index].line)
        for index, line in lines_by_index.items()
    }
    for has_codes, keep_marks in product((False, True), repeat=2):
        chosen = [index for index in indices if kinds[index] == (has_codes, keep_marks)]
        if not chosen:
            continue
        lines = tuple(lines_by_index[index] for index in chosen)
        terms = tuple(_list_phrases(results[index]) for index in chosen) if accept else ()
        translations = yield LineRequest(
            lines, has_codes or options.attention, accept is not None, keep_marks, terms if any(terms) else ()
        )
        texts = place_codes([readings[index] for index in chosen], translations)  # a retry takes only those of its candidates
        for index, translation in zip(chosen, translations, strict=True):
            segment, reading = segments[index], readings[index]
            if accept is None:
                results[index] = _build_segment(results[index].source, segment, reading, translation, next(texts), options)
                is_kept = reading.is_kept_by(translation, segment, options.rules, partial(_mark_kept, options))
                if not is_kept or _find_difference(results[index].source, results[index].text, options):
                    lost.append(index)
                continue
            for candidate in (translation, *translation.alternatives):
                candidate = replace(candidate, alternatives=())
                (text,) = place_codes([reading], [candidate])
                result = _build_segment(results[index].source, segment, reading, candidate, text, options)
                is_kept = reading.is_kept_by(candidate, segment, options.rules, partial(_mark_kept, options))
                if is_kept and not _find_difference(result.source, result.text, options) and accept(results[index], result):
                    results[index] = result
                    break
    return lost


def _annotate_terms(reading: Reading, options: TextOptions) -> str:
    """Return the line of a reading with the preferred translation behind each term, if the model reads that."""
    line = reading.line
    if not options.annotate_terms or options.glossary is None or (has_marks(line) and not reading.marked):
        return line
    terms = [(match.start, match.end, match.entry.targets[0]) for match in options.glossary.find(line) if match.entry.targets]
    return annotate_terms(line, [term for term in terms if not has_marks(term[2])])


def _build_segment(
    source: str, segment: CodedText, reading: Reading, translation: Translation, text: str, options: TextOptions
) -> TranslatedSegment:
    """Return the translation of a reading with its checks. source, text: the segment and its translation with their markup"""
    plain = reading.write_placeholders(translation)
    checks = check_translation(reading.plain_source, plain.text, options.target_language, options.limits.length_ratios)
    if options.limits.has_low_score(translation):
        checks.append("low_score")
    terms = _check_terms(source, text, options)
    if any(use.form is None for use in terms):
        checks.append("terminology")
    return TranslatedSegment(
        source,
        text,
        plain,
        tuple(checks),
        tuple(
            alternative_text
            for alternative in translation.alternatives
            if reading.is_kept_by(alternative, segment, options.rules, partial(_mark_kept, options))
            and not _find_difference(source, alternative_text := next(place_codes([reading], [alternative])), options)
        ),
        terms,
    )


def _find_difference(source: str, text: str, options: TextOptions) -> CodeDifference | None:
    """Return the difference between the codes of a segment and of its translation, both with their markup."""
    is_plain = options.markup == "none" or not any(sign in side for side in (source, text) for sign in "<>&")
    if is_plain and not options.rules.kept and not may_have_codes(source) and not may_have_codes(text):
        return None
    if options.markup != "none" and not options.rules.kept and list_equal_tags(source, text, options.opaque_tags):
        return None
    sides = (read_inline(side, options.markup, options.rules, options.opaque_tags) for side in (source, text))
    difference = compare_codes(*sides)
    return difference if difference != NO_DIFFERENCE else None


def _translate_between_codes(
    segments: Sequence[CodedText], results: list[TranslatedSegment], indices: Sequence[int], options: TextOptions
) -> Generator[LineRequest, Sequence[Translation], None]:
    """Translate the pieces between the codes of segments one by one. A segment that fails again stays in its language."""
    pieces = {
        index: [_cut_piece(text)[1] for text in _list_texts(segments[index].parts) if _has_word(text)] for index in indices
    }
    lines = tuple(dict.fromkeys(chain.from_iterable(pieces.values())))
    translations = dict(zip(lines, (yield LineRequest(lines, options.attention)), strict=True)) if lines else {}
    for index in indices:
        segment, source = segments[index], results[index].source
        parts = _replace_texts(segment.parts, {line: translations[line].text for line in pieces[index]})
        text = replace(segment, parts=tuple(parts)).write()
        worst = min((translations[line] for line in pieces[index]), key=lambda item: STATUSES_WORST_FIRST.index(item.status))
        translation = replace(worst, text=text, tokens=(), source_tokens=(), attention=None, alignment=None, alternatives=())
        checks: list[Check] = []
        if difference := _find_difference(source, text, options):
            text, checks = source, [*difference.flags] or ["variables"]
        terms = _check_terms(source, text, options)
        checks += ["terminology"] if any(use.form is None for use in terms) else []
        results[index] = TranslatedSegment(source, text, translation, tuple(checks), (), terms)


def _cut_piece(text: str) -> tuple[str, str, str]:
    """Return white space and marks before the words of a piece, the words, and white space and colons behind them."""
    start = len(text) - len(text.lstrip(" \t\r\n\xa0.,:;!?)]}\u00bb\u201d\u2019\u3001\u3002\uff0c\uff1a"))
    words = text[start:].rstrip(" \t\r\n\xa0,:;([{\u00ab\u201c\u3001\uff0c\uff1a")
    return text[:start], words, text[start + len(words) :]


def _list_texts(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the texts between codes."""
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Element):
            yield from _list_texts(part.parts)


def _replace_texts(parts: Sequence[Part], translations: Mapping[str, str]) -> Iterator[Part]:
    """Yield the parts with translated texts, and with the white space of the source around them."""
    for part in parts:
        if isinstance(part, Element):
            yield replace(part, parts=tuple(_replace_texts(part.parts, translations)))
        elif isinstance(part, str):
            before, words, after = _cut_piece(part)
            yield before + translations.get(words, words) + after
        else:
            yield part


def _check_terms(source: str, text: str, options: TextOptions) -> tuple[TermUse, ...]:
    """Return the use of the terms of a segment; both texts have markup."""
    if options.glossary is None:
        return ()
    sides = (_parse(side, options).parts for side in (source, text))
    return options.glossary.check(*("".join(_get_surface(part, space=" ") for part in parts) for parts in sides))


def _list_phrases(segment: TranslatedSegment) -> PhraseGroups:
    """Return the phrases that the terms of a segment require. A term that is not translated is a placeholder and needs none."""
    return tuple(list_phrases(use.entry) for use in segment.terms if not use.entry.do_not_translate)


def _has_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def count_segments(text: str, options: TextOptions) -> int:
    """Return the number of segments that a text is divided into."""
    return sum(isinstance(piece, CodedText) for piece in divide(text, options))


def divide(text: str, options: TextOptions) -> Iterator[Piece]:
    """Yield the segments of a text and what stands between them; written one after the other, they are the text."""
    coded = _parse(text, options)
    blocks = set(_list_breaks(coded.parts, options)) if _has_break(coded.parts) else set()
    _add_blocks(coded.parts, options, blocks)
    yield from _divide_blocks(coded.parts, options, blocks, is_escaped=coded.is_escaped)


def _parse(text: str, options: TextOptions) -> CodedText:
    """Return a text with its tags, its placeholders, and the terms that are not translated as codes."""
    coded = read_inline(
        text,
        options.markup,
        options.rules,
        options.opaque_tags,
        keep_line_breaks=options.keep_line_breaks,
        language=options.source_language,
    )
    return mark_kept_terms(mark_word_codes(coded), options.glossary)


def _mark_kept(options: TextOptions, text: CodedText) -> CodedText:
    """Return a text with the words that are not translated as points."""
    return mark_other_scripts(mark_kept_terms(text, options.glossary), options.other_scripts)


def _divide_blocks(parts: Sequence[Part], options: TextOptions, blocks: set[int], *, is_escaped: bool) -> Iterator[Piece]:
    """Yield the pieces of a text: breaks and tags of blocks are kept, and the text between two of them is divided.

    blocks: identities of the breaks that end a text, and what `_add_blocks` adds
    """
    run: list[Part] = []
    outline = _find_outline(parts, options)
    for number, part in enumerate(parts):
        if isinstance(part, str) or not (number in outline or id(part) in blocks):
            run.append(part)
            continue
        yield from _divide_run(run, options, is_escaped=is_escaped)
        run = []
        if isinstance(part, Point):
            yield part.markup
        else:
            yield part.start_tag
            yield from _divide_blocks(part.parts, options, blocks, is_escaped=is_escaped)
            yield part.end_tag
    yield from _divide_run(run, options, is_escaped=is_escaped)


def _add_blocks(parts: Sequence[Part], options: TextOptions, blocks: set[int]) -> int:
    """Add the identities of the codes that divide a text, and return the length of the text without codes.

    Such a code is the tag of a block, contains a break or such a code, or is an element longer than any sentence.
    """
    length = 0
    for part in parts:
        inner_length = _add_blocks(part.parts, options, blocks) if isinstance(part, Element) else len(_get_surface(part))
        length += inner_length
        if not isinstance(part, str) and (
            (isinstance(part, Element) and inner_length > MAX_SENTENCE_CHARACTERS) or _is_block(part, options, blocks)
        ):
            blocks.add(id(part))
    return length


def _is_block(part: Point | Element, options: TextOptions, blocks: set[int]) -> bool:
    """Return whether a code is the tag of a block, or contains a break or one of the blocks."""
    if _is_tag_of_block(part, options):
        return True
    if not isinstance(part, Element):
        return False
    if _get_tag_name(part, options) in options.non_splitting_tags:
        return any(isinstance(child, Point) and id(child) in blocks for child in part.parts)
    return any(id(child) in blocks for child in part.parts) or bool(_find_outline(part.parts, options, min_elements=2))


def _is_tag_of_block(part: Point | Element, options: TextOptions) -> bool:
    name = _get_tag_name(part, options)
    if name in options.splitting_tags:
        return True
    is_html = options.markup != "xml" or _get_tag(part).startswith("&lt;")  # so has a section CDATA of XML
    return is_html and name in BLOCK_TAGS and name not in options.non_splitting_tags


def _get_tag(part: Point | Element) -> str:
    return part.markup if isinstance(part, Point) else part.start_tag


def _get_tag_name(part: Point | Element, options: TextOptions) -> str:
    """Return the name of a tag; in lower case, unless it is of XML. Other codes have none."""
    match = _TAG_NAME.match(_get_tag(part))
    name = match[1] if match else ""
    return name if options.markup == "xml" else name.lower()


def _find_outline(parts: Sequence[Part], options: TextOptions, *, min_elements: int = 1) -> set[int]:
    """Return the numbers of the elements that give XML its structure: no text is between them.

    Elements for parts of a sentence, such as `<b>`, give none, unless each stands on a line of its own.
    """
    if not options.detects_outline or any(_get_surface(part).strip() for part in parts if not isinstance(part, Element)):
        return set()
    elements = [number for number, part in enumerate(parts) if isinstance(part, Element)]
    if len(elements) < min_elements:
        return set()
    gaps = ["".join(map(_get_surface, parts[first + 1 : last])) for first, last in pairwise(elements)]
    is_laid_out = bool(gaps) and all("\n" in gap for gap in gaps)
    outline = set()
    for number in elements:
        name = _get_tag_name(cast(Element, parts[number]), options)
        if name not in options.non_splitting_tags and (is_laid_out or name.lower() not in INLINE_TAGS):
            outline.add(number)
    return outline


def _has_break(parts: Sequence[Part]) -> bool:
    return any(
        _is_break(part) if isinstance(part, Point) else isinstance(part, Element) and _has_break(part.parts) for part in parts
    )


@dataclass
class _Lines:
    """Lines of a text between two blocks, also those that begin or end inside an element.

    breaks: the break behind each line but the last
    hard: numbers of the breaks that always end a text
    inner: numbers of the breaks inside an element, if its line has text beside it
    """

    lines: list[list[str]]
    breaks: list[Point]
    hard: list[int]
    inner: list[int]


def _list_breaks(parts: Sequence[Part], options: TextOptions) -> Iterator[int]:
    """Yield the identities of the breaks that end a text: all but those `<br>` that `find_boundaries` finds in a sentence."""
    for group in _list_lines(parts, options):
        if group.breaks:
            boundaries = find_boundaries(["".join(line) for line in group.lines], group.hard, group.inner)
            yield from (id(point) for point, is_boundary in zip(group.breaks, boundaries, strict=True) if is_boundary)


def _list_lines(parts: Sequence[Part], options: TextOptions) -> list[_Lines]:
    """Return the lines of each stretch of a text without a block."""
    groups = [_Lines([[]], [], [], [])]

    def end_stretch() -> None:
        groups.append(_Lines([[]], [], [], []))

    def read(parts: Sequence[Part], is_inside: bool) -> None:
        is_beside_text = _find_neighbors(parts)
        for part, is_beside in zip(parts, is_beside_text, strict=True):
            group = groups[-1]
            if isinstance(part, str):
                group.lines[-1].append(part)
            elif isinstance(part, Point) and _is_break(part):
                if not _has_tag(part, "br"):
                    group.hard.append(len(group.breaks))
                if is_inside:
                    group.inner.append(len(group.breaks))
                group.breaks.append(part)
                group.lines.append([])
            elif _is_tag_of_block(part, options):
                end_stretch()
                read(part.parts if isinstance(part, Element) else (), is_inside=False)
                end_stretch()
            elif isinstance(part, Element):
                read(part.parts, is_inside or is_beside)
            else:
                group.lines[-1].append(part.text)

    read(parts, is_inside=False)
    return groups


def _find_neighbors(parts: Sequence[Part]) -> list[bool]:
    """Return for each part whether a text stands beside it on its first or its last line."""
    flags = [False] * len(parts)
    for order in (range(len(parts)), range(len(parts) - 1, -1, -1)):
        has_text = False
        for number in order:
            part = parts[number]
            flags[number] |= has_text
            if isinstance(part, Point) and _is_break(part):
                has_text = False
            else:
                has_text |= CodedText((part,)).has_text
    return flags


def _is_break(point: Point) -> bool:
    """Return whether a point is a break, also one with the short tag of a file."""
    return point.is_break or _BREAK_TAG.match(point.markup) is not None


def _has_tag(part: Part, name: str) -> bool:
    return isinstance(part, Point) and part.markup.removeprefix("&lt;").removeprefix("<")[: len(name)].lower() == name


def _divide_run(parts: Sequence[Part], options: TextOptions, *, is_escaped: bool) -> Iterator[Piece]:
    """Yield the sentences of a text with codes, and the white space and tags between them."""
    before, core, after = _peel(parts, is_escaped=is_escaped)
    if before:
        yield before
    if len(core) == 1 and isinstance(core[0], Element):
        yield core[0].start_tag
        yield from _divide_run(core[0].parts, options, is_escaped=is_escaped)
        yield core[0].end_tag
    elif core:
        for is_sentence, sentence in _cut_sentences(core, options):
            if is_sentence:
                left, inner, right = ("", core, "") if sentence is core else _peel(sentence, is_escaped=is_escaped)
                is_folded = options.markup == "html" or not options.keep_line_breaks
                if is_folded and _SPACE_RUN.search("".join(map(_get_surface, inner))):
                    inner = tuple(map(_collapse_spaces, inner))
                yield from (piece for piece in (left, CodedText(inner, is_escaped), right) if piece)
            else:
                between = "".join(write_parts(sentence, is_escaped=is_escaped))
                yield between if between.strip() else Separator(between)
    if after:
        yield after


def _collapse_spaces(part: Part) -> Part:
    """Return a part of a text with one space for each run of white space, as a browser shows markup."""
    if isinstance(part, str):
        return _SPACES.sub(" ", part)
    return replace(part, parts=tuple(map(_collapse_spaces, part.parts))) if isinstance(part, Element) else part


def _peel(parts: Sequence[Part], *, is_escaped: bool) -> tuple[str, tuple[Part, ...], str]:
    """Return the white space and tags before and after the text, and what is between them."""
    start, end = 0, len(parts)
    while start < end and _is_edge(parts[start]):
        start += 1
    while end > start and _is_edge(parts[end - 1]):
        end -= 1
    core = list(parts[start:end])
    left = right = ""
    if core and isinstance(core[0], str):
        left = core[0][: len(core[0]) - len(core[0].lstrip())]
        core[0] = core[0].lstrip()
    if core and isinstance(core[-1], str):
        right = core[-1][len(core[-1].rstrip()) :]
        core[-1] = core[-1].rstrip()
    before, after = ("".join(write_parts(side, is_escaped=is_escaped)) if side else "" for side in (parts[:start], parts[end:]))
    return before + left, tuple(core), right + after


def _is_edge(part: Part) -> bool:
    """Return whether a part at the edge of a text is no text: white space, or a code without text."""
    return not part.strip() if isinstance(part, str) else isinstance(part, Point) and not part.text


def _cut_sentences(parts: tuple[Part, ...], options: TextOptions) -> Iterator[tuple[bool, tuple[Part, ...]]]:
    """Yield the sentences of parts (true) and what is between them (false). No sentence ends inside a code."""
    surfaces = [_get_surface(part) for part in parts]
    ends = list(accumulate(map(len, surfaces)))
    protected = [
        (end - len(surface), end) for part, surface, end in zip(parts, surfaces, ends, strict=True) if part is not surface
    ]
    text = "".join(surfaces)
    spans = split_sentences(text, options.source_language, protected) if options.split_sentences else [(0, len(text))]
    spans = cut_long_spans(text, spans, protected, MAX_SENTENCE_CHARACTERS)
    if spans == [(0, len(text))] and surfaces[-1] and "" not in parts:  # so are most
        yield True, parts
        return
    span_ends, edges = [end for _, end in spans], list(chain.from_iterable(spans))

    def find_sentence(start: int, end: int) -> int:
        """Return the number of the sentence that a piece of the text is in, or -1 if it is between two."""
        number = bisect_right(span_ends, start)
        return number if number < len(spans) and spans[number][0] < end else -1

    owned: list[tuple[int, Part]] = []
    for part, surface, end in zip(parts, surfaces, ends, strict=True):
        start = end - len(surface)
        if isinstance(part, str):
            cuts = [start, *edges[bisect_right(edges, start) : bisect_left(edges, end)], end]
            owned += [(find_sentence(a, b), part[a - start : b - start]) for a, b in pairwise(cuts) if a < b]
        else:
            owned.append((find_sentence(start, end), part))
    for number, group in groupby(owned, key=itemgetter(0)):
        yield number >= 0, tuple(part for _, part in group)


def _get_surface(part: Part, *, space: str = "") -> str:
    """Return the text of a part, in which sentences and terms are looked for. space: text of a code that is white space"""
    if isinstance(part, str):
        return part
    if isinstance(part, Point):
        return space if part.is_space else part.text
    return "".join(_get_surface(child, space=space) for child in part.parts)
