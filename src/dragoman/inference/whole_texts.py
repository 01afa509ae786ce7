"""Translation of whole texts: line breaks, spaces, markup and placeholders stay, and sentences are translated one by one.

`text_division` cuts a text into segments and what stands between them. `translate_texts` translates the segments of many texts
together and puts them back. What the model reads of a segment is a `Reading`:

1. For a model that was trained with marks, placeholders and tags without content are marks, and the search keeps each.
2. Otherwise placeholders are part of the text.
3. If a translation loses a placeholder, the model reads the text without codes, and attention places them all.
4. If the translation then has other codes than its source, the model reads the pieces between the codes one by one.
5. If that fails, too, the segment stays in its language, and has the names of the failed checks.

Attention places pairs of tags in all readings. `compare_codes` checks each translation as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

from dragoman.inference.readings import Reading, place_codes, read_marks, read_placeholders, read_without_codes
from dragoman.inference.text_division import Separator, divide, get_surface, read_codes
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_result import STATUSES_WORST_FIRST, Translation
from dragoman.languages import is_spaced_language
from dragoman.tasks.translation_status import TranslationStatus
from dragoman.text.code_check import NO_DIFFERENCE, CodeDifference, compare_codes
from dragoman.text.currency_signs import find_currency_signs, loses_currency
from dragoman.text.guards import Check, check_translation
from dragoman.text.inline_codes import CodedText, Element, Part, Point, list_equal_tags, list_texts, read_inline
from dragoman.text.kept_terms import mark_kept_terms, mark_spans
from dragoman.text.other_scripts import is_in_other_script, mark_same_words, mark_unread_words
from dragoman.text.placeholders import may_have_codes
from dragoman.text.target_language import find_target_language
from dragoman.text.term_annotation import annotate_terms, has_marks

if TYPE_CHECKING:
    from dragoman.inference.translation_constraints import TranslationConstraints
    from dragoman.text.glossary import TermUse

KeptStatus = Literal["other_script", "target_language"]
"""Status of a segment that stays as it is: it is in a script of neither language, or in the target language already."""
SegmentStatus = TranslationStatus | KeptStatus
_SEGMENT_STATUSES_WORST_FIRST: tuple[SegmentStatus, ...] = (*STATUSES_WORST_FIRST[:-1], "other_script", "target_language", "ok")
MAX_TERM_COST = 0.5
"""Fall of the mean log-probability of the tokens, in nats, up to which a translation with a required term is taken."""


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
    segments: tuple[TranslatedSegment, ...] = field(repr=False)
    alternatives: tuple[str, ...] = ()

    @property
    def status(self) -> SegmentStatus:
        """Worst status of the segments; "ok" for a text without segments."""
        return min((segment.status for segment in self.segments), key=_SEGMENT_STATUSES_WORST_FIRST.index, default="ok")

    def to_line(self) -> Translation:
        """Return the text as the translation of a line, with the sum of the scores and the worst status of its segments."""
        translations = [segment.translation for segment in self.segments if segment.translation is not None]
        status: TranslationStatus = "ok" if self.text.strip() else "empty"
        if translations:
            status = min((translation.status for translation in translations), key=STATUSES_WORST_FIRST.index)
        return Translation(self.text, sum(translation.score for translation in translations), status=status)


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
        from dragoman.inference.translation_constraints import TranslationConstraints  # imported late: it imports the search

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
    if len(segments) == len(pieces) == 1 and not segments[0].alternatives:  # so are most
        return TextTranslation(segments[0].text, segments)

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
    scripts, reads = options.other_scripts, options.limits.reads
    segments = [mark_unread_words(segment, scripts, reads) for segment in segments]
    readings = [(options.mask_codes and read_marks(segment)) or read_placeholders(segment) for segment in segments]
    if options.language_check:
        reasons = _find_kept(texts, options)
        results = [replace(result, kept=reason) for result, reason in zip(results, reasons, strict=True)]
    waiting = [index for index, segment in enumerate(segments) if _has_word(segment.clean.text) and results[index].kept is None]
    lost = yield from _translate_readings(segments, readings, results, waiting, options)
    for index in lost:
        marked = mark_spans(segments[index], find_currency_signs)
        has_signs, segments[index] = marked != segments[index], marked
        readings[index] = (has_signs and options.mask_codes and read_marks(marked)) or read_without_codes(marked)
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
    groups: dict[tuple[bool, bool], dict[int, str]] = {}  # lines by their indices
    for index in indices:
        reading, line = readings[index], _annotate_terms(readings[index], options)
        kind = reading.text.has_codes, bool(reading.marked) or line != reading.line
        groups.setdefault(kind, {})[index] = line
    for (has_codes, keep_marks), chosen in sorted(groups.items()):
        lines = tuple(chosen.values())
        terms = tuple(_list_phrases(results[index]) for index in chosen) if accept else ()
        translations = yield LineRequest(
            lines, has_codes or options.attention, accept is not None, keep_marks, terms if any(terms) else ()
        )
        texts = place_codes([readings[index] for index in chosen], translations)  # a retry takes only those of its candidates
        for index, translation in zip(chosen, translations, strict=True):
            segment, reading = segments[index], readings[index]
            mark_kept = partial(_mark_kept, options, results[index].source)
            if accept is None:
                results[index] = _build_segment(results[index].source, segment, reading, translation, next(texts), options)
                is_kept = reading.is_kept_by(translation, segment, options.rules, mark_kept)
                if not is_kept or _loses_code(results[index], options):
                    lost.append(index)
                continue
            for candidate in (translation, *translation.alternatives):
                candidate = replace(candidate, alternatives=())
                (text,) = place_codes([reading], [candidate])
                result = _build_segment(results[index].source, segment, reading, candidate, text, options)
                is_kept = reading.is_kept_by(candidate, segment, options.rules, mark_kept)
                if is_kept and not _loses_code(result, options) and accept(results[index], result):
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
            if reading.is_kept_by(alternative, segment, options.rules, partial(_mark_kept, options, source))
            and not _find_difference(source, alternative_text := next(place_codes([reading], [alternative])), options)
        ),
        terms,
    )


def _loses_code(result: TranslatedSegment, options: TextOptions) -> bool:
    """Return whether a translation has other codes than its segment, or fewer signs of currencies."""
    return _find_difference(result.source, result.text, options) is not None or loses_currency(result.source, result.text)


def _find_difference(source: str, text: str, options: TextOptions) -> CodeDifference | None:
    """Return the difference between the codes of a segment and of its translation, both with their markup."""
    if options.rules.kept:
        has_equal_codes = False
    elif options.markup == "none":
        has_equal_codes = not may_have_codes(source) and not may_have_codes(text)
    else:
        has_equal_codes = list_equal_tags(source, text, options.opaque_tags) is not None
    if has_equal_codes:
        return None
    sides = (read_inline(side, options.markup, options.rules, options.opaque_tags) for side in (source, text))
    difference = compare_codes(*sides)
    return difference if difference != NO_DIFFERENCE else None


def _translate_between_codes(
    segments: Sequence[CodedText], results: list[TranslatedSegment], indices: Sequence[int], options: TextOptions
) -> Generator[LineRequest, Sequence[Translation], None]:
    """Translate the pieces between the codes of segments one by one. A segment that fails again stays in its language."""
    pieces = {
        index: [_cut_piece(text)[1] for text in list_texts(segments[index].parts) if _has_word(text)] for index in indices
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
    sides = (read_codes(side, options).parts for side in (source, text))
    return options.glossary.check(*("".join(get_surface(part, space=" ") for part in parts) for parts in sides))


def _list_phrases(segment: TranslatedSegment) -> PhraseGroups:
    """Return the phrases that the terms of a segment require. A term that is not translated is a placeholder and needs none."""
    return tuple(use.entry.list_phrases() for use in segment.terms if not use.entry.do_not_translate)


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _mark_kept(options: TextOptions, source: str, text: CodedText) -> CodedText:
    """Return the translation of a source with the words that are not translated as points."""
    marked = mark_unread_words(CodedText((source,)), options.other_scripts, options.limits.reads)
    words = {part.markup for part in marked.parts if isinstance(part, Point)}
    return mark_same_words(mark_kept_terms(text, options.glossary), words)
